"""The demo's measurement by the real client, on a server that only pretends to score."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from sglang_prefill_ext.demo.measure import Cost, Scorer, measure_throughput, rank_by_both

LABELS = [7, 9]
METRICS = """\
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{{model="m"}} {tokens}
# TYPE sglang:num_requests_total counter
sglang:num_requests_total{{model="m"}} {requests}
"""


class Server(ThreadingHTTPServer):
    """Scores items by their last digit; counts one token per item, and requests as SGLang does."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.tokens = {"packed": 0, "stock": 0}
        self.requests = {"packed": 0, "stock": 0}
        self.labels: set[tuple[int, ...]] = set()


class _Answers(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        path = "stock" if self.headers.get("x-prefill-only") == "off" else "packed"
        self.server.tokens[path] += len(body["items"])
        self.server.requests[path] += len(body["items"]) if path == "stock" else 1
        self.server.labels.add(tuple(body["label_token_ids"]))
        scores = [[int(item[-1]) / 10, 1 - int(item[-1]) / 10] for item in body["items"]]
        self._send(json.dumps({"scores": scores, "usage": {"prompt_tokens": 1}}))

    def do_GET(self) -> None:
        tokens, requests = self.server.tokens, self.server.requests
        if self.path == "/metrics":
            self._send(METRICS.format(tokens=tokens["stock"], requests=requests["stock"]))
        else:
            counted = {"packed": requests["packed"]}
            counters = {"tokens_computed": tokens["packed"], "requests": counted}
            self._send(json.dumps({"frontend": {"counters": counters}}))

    def _send(self, text: str) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def scorer(server: Server) -> Scorer:
    return Scorer(f"http://127.0.0.1:{server.server_port}", LABELS)


def test_either_path_ranks_and_is_counted_by_itself(server: Server, scorer: Scorer) -> None:
    request = ("query", ["item 3", "item 9", "item 5"])
    found = rank_by_both(scorer, request, [("other", ["item 1"])] * 2)
    for ranking in found.values():
        assert ranking.scores == [0.3, 0.9, 0.5]
        assert ranking.order == [1, 2, 0]
        assert ranking.latency_ms > 0
    assert found["packed"].cost == Cost(tokens=3, messages=1)
    assert found["stock"].cost == Cost(tokens=3, messages=3)
    assert server.labels == {tuple(LABELS)}


def test_every_client_is_answered_in_a_window_however_short(server: Server, scorer: Scorer) -> None:
    requests = [("query", ["item 1"]), ("query", ["item 2", "item 3"])]
    seen = measure_throughput(scorer, requests, clients=2, turns=3, seconds=0)
    assert server.tokens == {"packed": 9, "stock": 9}
    assert len(seen.ratios) == 3
    assert min(seen.ratios) > 0
