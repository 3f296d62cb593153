"""A real HTTP server that answers as SGLang does, or with given replies."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

Json = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """An answer; with status 0, the connection is closed without an answer."""

    status: int = 0
    text: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    after_s: float = 0.0


@dataclass(frozen=True)
class Seen:
    """A request that arrived."""

    path: str
    headers: dict[str, str]
    body: Json
    at: float


def value_of(item: Any) -> float:
    """The score of an item: a number that tells items apart, from 0 to 1."""
    number = sum(item) if isinstance(item, list) else sum(map(ord, item))
    return (number % 1009) / 1009


def answer(path: str, body: Json) -> Any:
    """The answer that SGLang would give."""
    if path == "/v1/score":
        labels = np.atleast_2d(body["label_token_ids"] or [0, 0])[0]
        rows = [[value_of(item), 1 - value_of(item)][: len(labels)] for item in body["items"]]
        logprobs = np.log(np.array(rows) + 1).tolist() if body["return_token_logprobs"] else None
        usage = {"prompt_tokens": 10 * len(rows)}
        return {"scores": rows, "token_logprobs": logprobs, "usage": usage}
    if path == "/v1/embeddings":
        assert body["encoding_format"] == "base64"
        vectors = [np.array([value_of(p), 2.0], "<f4").tobytes() for p in body["input"]]
        data = [{"embedding": base64.b64encode(vector).decode()} for vector in vectors]
        return {"data": [each | {"index": i} for i, each in enumerate(data)]}
    assert path == "/classify"
    prompts = body["text"] if "text" in body else body["input_ids"]
    return [{"embedding": [value_of(p), 1.0, 2.0], "meta_info": {}} for p in prompts]


class StandIn(ThreadingHTTPServer):
    """Listens on a free port; gives each of `replies` once, and then proper answers.

    Attributes:
        answers_together: the first answers wait until this many requests have arrived.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.replies: deque[Reply] = deque()
        self.seen: list[Seen] = []
        self.delay_s = 0.0
        self.answers_together = 0
        self.together = 0
        self.most_together = 0
        self.changed = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def will(self, *replies: Reply) -> None:
        self.replies.extend(replies)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StandIn

    def do_POST(self) -> None:
        server = self.server
        with server.changed:
            server.together += 1
            server.most_together = max(server.most_together, server.together)
            server.changed.notify_all()
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        server.seen.append(Seen(self.path, headers, body, time.monotonic()))
        time.sleep(server.delay_s)
        with server.changed:
            server.changed.wait_for(lambda: server.most_together >= server.answers_together, 60)
        reply = server.replies.popleft() if server.replies else None
        with server.changed:
            server.together -= 1
        if reply is None:
            reply = Reply(200, json.dumps(answer(self.path, body)))
        time.sleep(reply.after_s)
        self._send(reply)

    def _send(self, reply: Reply) -> None:
        self.close_connection = not reply.status
        if not reply.status:
            return
        content = reply.text.encode()
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Tests print nothing."""
