"""Packed requests on a server with all that operators switch on: logs, exports, traces, a key."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.integration.support.client import (
    LABELS,
    OPT_OUT,
    Json,
    generate_body,
    random_ids,
    score_body,
    wait_until,
)
from tests.integration.support.grpc_frontends import (
    FrontEnds,
    connected,
    front_ends,
    health,
    request_of,
)
from tests.integration.support.own_server import Serving, serving
from tests.integration.support.parity import assert_paths_agree
from tests.integration.support.processes import passing_on, scheduler_pid, stopped
from tests.integration.support.span_collector import SpanCollector, collecting
from tests.integration.support.stock_metrics import growth

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

NAME = "ranker"
KEY = "a-key"
SCORE = score_body(7, 30, [3, 5])
TOKENS = {"prompt_tokens": 68, "cached_tokens": 0, "completion_tokens": 0}
CALLER = "b7ad6b7169203331"
"""The span that a call is a part of."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("production")


@pytest.fixture(scope="module")
def collector() -> Iterator[SpanCollector]:
    with collecting() as running:
        yield running


@pytest.fixture(scope="module")
def production(
    model_dir: Callable[[str], Path], folder: Path, collector: SpanCollector
) -> Iterator[Serving]:
    """A server that the last test ends."""
    flags = ("--enable-prefill-only", "--sleep-on-idle", "--enable-metrics")
    flags += ("--log-requests", "--log-requests-level", "1", "--log-requests-format", "json")
    flags += ("--log-requests-target", str(folder / "log"))
    flags += ("--export-metrics-to-file", "--export-metrics-to-file-dir", str(folder / "export"))
    flags += ("--served-model-name", NAME, "--api-key", KEY, "--skip-server-warmup")
    flags += ("--enable-request-time-stats-logging", "--crash-dump-folder", str(folder / "crash"))
    flags += ("--enable-trace", "--otlp-traces-endpoint", collector.address)
    flags += ("--prefill-only-attach", str(folder / "attach" / "engine.sock"))
    env = {"SGLANG_OTLP_EXPORTER_SCHEDULE_DELAY_MILLIS": "50", "SGLANG_TIMEOUT_KEEP_ALIVE": "300"}
    with serving(model_dir("micro"), "production", *flags, env=env) as running:
        running.client.http.headers["authorization"] = f"Bearer {KEY}"
        yield running


def lines(folder: Path) -> list[Json]:
    """JSON lines of all files in a folder."""
    text = "\n".join(path.read_text() for path in sorted(folder.iterdir()))
    return [json.loads(line[line.index("{") :]) for line in text.splitlines() if line]


def test_a_request_without_the_key_is_refused(production: Serving) -> None:
    bare = {"authorization": ""}
    for path in ("/v1/score", "/prefill_only/explain"):
        assert production.client.http.post(path, json=SCORE, headers=bare).status_code == 401
    assert production.client.http.get("/prefill_only/status", headers=bare).status_code == 401
    assert production.client.http.get("/health", headers=bare).status_code == 200


@pytest.mark.patch("P48")
def test_processes_freeze_without_a_warm_up(production: Serving) -> None:
    wait_until(lambda: "freeze" in production.client.status()["frontend"]["startup"])
    reports = production.client.collect_garbage("stats")
    assert all(each["frozen"] > sum(each["objects"]) for each in reports), reports


def test_both_paths_answer_alike(production: Serving) -> None:
    assert_paths_agree(production.client, score_body(8, 30, [3, 5]))


def test_metrics_have_the_served_name(production: Serving) -> None:
    with growth(production.client) as grown:
        production.client.score(SCORE)
    assert {labels["model_name"] for _, labels in map(_named, grown)} == {NAME}


def _named(sample: Any) -> tuple[str, dict[str, str]]:
    name, labels = sample
    return name, dict(labels)


@pytest.mark.patch("P22")
@pytest.mark.parametrize("stock", [False, True], ids=["packed", "stock"])
def test_labels_that_end_a_plain_server_are_refused(production: Serving, stock: bool) -> None:
    client, body = production.client, generate_body([5, 6], 1)
    refused = client.post("/generate", body | {"custom_labels": {"team": "a"}}, stock=stock)
    assert refused.status_code == 400
    assert "custom_labels: 'team' is no label" in refused.json()["error"]["message"]
    known = body | {"custom_labels": {"model_name": NAME}}
    assert client.post("/generate", known, stock=stock).status_code == 200


def test_a_packed_call_is_one_line_of_the_log(production: Serving, folder: Path) -> None:
    before = len(lines(folder / "log"))
    production.client.score(score_body(9, 30, [3, 5]))
    (line,) = lines(folder / "log")[before:]
    assert line["event"] == "request.finished"
    shown = line["obj"]
    assert (shown["route"], shown["num_prompts"]) == ("/v1/score", 2)
    assert not shown.keys() & {"text", "input_ids"}  # from level 2 on
    meta = line["out"]["meta_info"]
    assert meta.items() >= TOKENS.items()
    assert (meta["id"], meta["finish_reason"]["type"]) == (line["rid"], "length")


def test_a_packed_call_is_one_line_of_the_export(production: Serving, folder: Path) -> None:
    def exported() -> list[Json]:
        """Lines of this call; those of calls before it may come late."""
        found = lines(folder / "export")
        return [line for line in found if line["id"] == finished["rid"]]

    logged = len(lines(folder / "log"))
    production.client.score(score_body(10, 30, [3, 5]))
    (finished,) = lines(folder / "log")[logged:]
    wait_until(lambda: bool(exported()))
    (line,) = exported()
    assert line.items() >= TOKENS.items()
    assert json.loads(line["request_parameters"])["num_prompts"] == 2


def score_in(trace: str, production: Serving, body: Json, **headers: str) -> None:
    """Score as a part of a trace."""
    headers = {"traceparent": f"00-{trace}-{CALLER}-01", **headers}
    answer = production.client.http.post("/v1/score", json=body, headers=headers)
    assert answer.status_code == 200, answer.text


def test_a_packed_call_is_a_part_of_its_callers_trace(
    production: Serving, collector: SpanCollector
) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    score_in(trace, production, score_body(14, 30, [3, 5]))
    names = ("tokenize", "prefill_waiting", "prefill_forward")

    def roots() -> list[Any]:
        spans = collector.of_trace(trace).values()
        return [span for span in spans if span.parent_span_id.hex() == CALLER]

    wait_until(lambda: len(collector.of_trace(trace)) >= 5)
    wait_until(lambda: bool(roots()) and {*names} <= collector.of_trace(trace).keys())
    (root,) = roots()
    stages = [collector.of_trace(trace)[name] for name in names]
    times = [
        time for each in stages for time in (each.start_time_unix_nano, each.end_time_unix_nano)
    ]
    assert times == sorted(times)
    assert root.start_time_unix_nano == times[0]
    assert root.end_time_unix_nano == times[-1]


def test_a_call_that_is_left_to_sglang_has_only_its_spans_in_a_trace(
    production: Serving, collector: SpanCollector
) -> None:
    left, later = "1" * 32, "2" * 32
    score_in(left, production, score_body(15, 30, [3]), **OPT_OUT)
    production.client.collect_garbage("collect")  # ends spans that nothing else has ended
    score_in(later, production, score_body(16, 30, [3]))
    wait_until(lambda: len(collector.of_trace(later)) == 5)
    spans = collector.of_trace(left)
    ids = {span.span_id.hex() for span in spans.values()}
    assert {"tokenize", "api_server_dispatch"} <= spans.keys()
    assert {span.parent_span_id.hex() for span in spans.values()} <= {CALLER, *ids}


def test_a_profile_shows_packed_forwards(production: Serving, folder: Path) -> None:
    client, traces = production.client, folder / "profile"
    asked = {"output_dir": str(traces), "activities": ["CPU"]}
    assert client.post("/start_profile", asked).status_code == 200
    client.score(score_body(15, 30, [3, 5]))
    assert client.post("/stop_profile", {}).status_code == 200
    (trace,) = traces.rglob("*.trace.json.gz")
    names = {
        event["name"] for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    }
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in names


@pytest.mark.parametrize("more", [{}, {"start_step": 1}, {"profile_by_stage": True}])
def test_a_profile_of_two_steps_ends_with_packed_forwards(
    production: Serving, tmp_path: Path, more: Json
) -> None:
    asked = {"output_dir": str(tmp_path), "activities": ["CPU"], "num_steps": 2}
    assert production.client.post("/start_profile", asked | more).status_code == 200

    def has_ended() -> bool:
        production.client.score(SCORE)
        return any(tmp_path.rglob("*.trace.json.gz"))

    wait_until(has_ended)


def test_a_level_that_shows_bodies_shows_those_of_packed_calls(
    production: Serving, folder: Path
) -> None:
    body = score_body(11, 30, [3, 5])
    client = production.client
    for level in (2, 1):
        changed = client.post("/configure_logging", {"log_requests_level": level})
        assert changed.status_code == 200
        before = len(lines(folder / "log"))
        client.score(body)
        shown = [line["obj"] for line in lines(folder / "log")[before:]]
        assert [each["items"] for each in shown if "items" in each] == [body["items"]] * (level - 1)
        wanted = {"query": body["query"], "items": body["items"]}
        assert shown[-1].get("input_ids") == (wanted if level == 2 else None)


def test_requests_of_one_token_are_logged_by_sglang(production: Serving, folder: Path) -> None:
    before = len(lines(folder / "log"))
    prompt = random_ids(random.Random(12), 9)
    with production.client.counting() as moved:
        production.client.generate(prompt, 1)
    assert moved["frontend.requests.packed"] == 1
    events = [line["event"] for line in lines(folder / "log")[before:]]
    assert events == ["request.received", "request.finished"]


@pytest.fixture
def front_end(production: Serving, folder: Path) -> Iterator[FrontEnds]:
    """A gRPC front end, which has to give the server no calls while that ends."""
    with front_ends(folder / "attach" / "engine.sock", "production-grpc", "--processes=1") as one:
        yield one


def test_what_is_under_way_is_answered_before_the_server_ends(
    production: Serving, front_end: FrontEnds
) -> None:
    server, client = production
    seen = server.log_path.stat().st_size
    assert server.pid is not None

    def draining(requests: int) -> bool:
        line = f"Remaining number of requests {requests}".encode()
        return line in server.log_path.read_bytes()[seen:]

    with (
        ThreadPoolExecutor() as pool,
        closing(HTTPConnection(server.host, server.port)) as late,
        connected(front_end.address) as stub,
        grpc.insecure_channel(front_end.address) as another,
    ):
        headers = {**client.http.headers, "content-type": "application/json"}
        late.request("GET", "/model_info", headers=headers)
        late.getresponse().read()
        with stopped(scheduler_pid(server)):
            with passing_on(client):
                reply = pool.submit(client.score, score_body(13, 30, [3, 5]))
            with passing_on(client):
                call = stub.Score.future(request_of(SCORE), timeout=100)
            os.kill(server.pid, signal.SIGTERM)
            wait_until(lambda: draining(2))
            assert client.http.get("/health").status_code == 503
            wait_until(lambda: health(another) == "NOT_SERVING")
            with pytest.raises(grpc.RpcError, match="going down") as refused:
                stub.Score(request_of(SCORE), timeout=100)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert len(reply.result()["scores"]) == 2
        assert len(call.result().scores) == 2 * 8 * len(LABELS)
        with stopped(scheduler_pid(server)):
            wait_until(lambda: draining(0))
            # The event loop stands still until the scheduler has ended, and reads this afterwards.
            late.request("POST", "/v1/score", json.dumps(SCORE), headers)
        answer = late.getresponse()
        assert (answer.status, b"shutting down" in answer.read()) == (503, True)
    wait_until(lambda: not server.pids)
