"""Priorities, deadlines and a full queue, on a server that serves one request a forward."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from sglang_prefill_ext.local_server import LocalServer
from tests.conftest import IN_FLIGHT
from tests.forking.launch import ForkedServer
from tests.integration.programs.in_servers.sitecustomize import LEFT_IN_FLIGHT
from tests.integration.support.client import (
    OPT_OUT,
    Client,
    Json,
    generate_body,
    score_body,
    wait_until,
)
from tests.integration.support.generation import stream_events
from tests.integration.support.load import steady_load
from tests.integration.support.own_server import LOGS
from tests.integration.support.parity import assert_same_answer
from tests.integration.support.processes import held_back, passed_on

pytestmark = pytest.mark.timeout(900)

PRIORITY = "x-prefill-only-priority"
TIMEOUT = "x-prefill-only-timeout-ms"
MAX_QUEUED_TOKENS = 600
BODY = score_body(1, 60, [20] * 10)  # 260 tokens
FLAGS = {
    "order": "priority",
    "launch-tokens": "1",  # so requests do not join each other
    "max-queued-tokens": str(MAX_QUEUED_TOKENS),
    "decode-slowdown": "4",
    "decode-step-tokens": "44",  # so two steps grant what a forward with BODY costs
}


@pytest.fixture(scope="module")
def server(model_dir: Callable[[str], Path]) -> Iterator[LocalServer]:
    """Replaces the shared server."""
    knobs = [f"--prefill-only-{name}={value}" for name, value in FLAGS.items()]
    log = LOGS / "scheduling.log"
    flags = ["--enable-prefill-only", "--enable-metrics", "--sleep-on-idle", *knobs]
    with ForkedServer(model_dir("micro"), flags, env=IN_FLIGHT, log_path=log) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: LocalServer) -> Iterator[Client]:
    client = Client(server.base_url)
    with client.http:
        yield client


def test_forwards_are_in_flight_between_steps(server: LocalServer) -> None:
    assert LEFT_IN_FLIGHT in server.log_path.read_text()


def priority(level: int) -> dict[str, str]:
    return {PRIORITY: str(level)}


def timeout(ms: int) -> dict[str, str]:
    return {TIMEOUT: str(ms)}


@pytest.mark.patch("P23")
def test_a_full_queue_rejects_the_next_request_and_answers_the_others(
    server: LocalServer, client: Client, pool: ThreadPoolExecutor
) -> None:
    wanted = client.score(BODY)
    with client.counting() as moved:
        with held_back(server, client, pool, [BODY] * 3) as replies:
            pass
        answers = [reply.result() for reply in replies]
    good = [answer.json() for answer in answers if answer.status_code == 200]
    assert len(good) == 2
    for answer in good:
        assert_same_answer(answer, wanted)
    (rejected,) = (answer for answer in answers if answer.status_code != 200)
    assert rejected.status_code == 429
    assert int(rejected.headers["retry-after"]) >= 1
    assert rejected.json()["code"] == 429
    assert f"780 tokens would wait, the limit is {MAX_QUEUED_TOKENS}" in rejected.json()["message"]
    assert moved["frontend.requests.rejected"] == moved["scheduler.requests.rejected"] == 1


@pytest.mark.parametrize("fields", [{}, {"rid": "named"}, {"log_metrics": True}])
def test_a_generation_that_is_rejected_learns_when_to_come_again(
    server: LocalServer, client: Client, pool: ThreadPoolExecutor, fields: Json
) -> None:
    """The second body needs one of SGLang's request objects, and SGLang itself reads the third."""
    body = generate_body([5] * 260, 1) | fields
    with held_back(server, client, pool, [BODY] * 2) as replies:
        rejected = passed_on(client, pool, body, "/generate")
    assert rejected.result().status_code == 429, rejected.result().text
    assert int(rejected.result().headers["retry-after"]) >= 1
    assert rejected.result().json()["code"] == 429
    assert {reply.result().status_code for reply in replies} == {200}


def test_an_empty_queue_takes_a_call_over_the_limit_whose_prompts_begin_differently(
    server: LocalServer, client: Client, pool: ThreadPoolExecutor
) -> None:
    """They are two packed requests."""
    alike = [[first] * 300 + [token] for first in (11, 12) for token in (5, 6, 7)]
    body: Json = {"model": "m", "prompt": alike, "max_tokens": 1, "temperature": 0}
    with client.counting() as moved:
        with held_back(server, client, pool, [body], "/v1/completions") as replies:
            pass
        (answer,) = (reply.result() for reply in replies)
    assert answer.status_code == 200, answer.text
    wanted = client.post("/v1/completions", body, stock=True).json()
    found = [each["text"] for each in answer.json()["choices"]]
    assert found == [each["text"] for each in wanted["choices"]]
    assert moved["scheduler.requests.ok"] == 2


def test_a_higher_priority_overtakes(
    server: LocalServer, client: Client, pool: ThreadPoolExecutor
) -> None:
    def explain(level: int) -> Future[httpx.Response]:
        small = score_body(level, 20, [4] * 10)
        return passed_on(client, pool, small, "/prefill_only/explain", priority(level))

    with held_back(server, client, pool, []):
        low = [explain(level) for level in (-1, 0, 0)]
        high = explain(5)  # it comes last
    waited = [reply.result().json()["queue_ms"] for reply in (high, *low)]
    assert waited[0] == min(waited)
    assert waited[1] == max(waited)


@pytest.mark.patch("P15")
def test_a_deadline_that_passed_on_the_way_costs_no_forward(
    server: LocalServer, client: Client, pool: ThreadPoolExecutor
) -> None:
    with client.counting() as moved:
        with held_back(server, client, pool, [BODY]) as replies:
            late = passed_on(client, pool, BODY, headers=timeout(5_000))
            time.sleep(5)
        assert late.result().status_code == 504
        assert {reply.result().status_code for reply in replies} == {200}
    assert "deadline" in late.result().json()["message"]
    assert moved["frontend.requests.expired"] == moved["scheduler.requests.expired"] == 1
    assert moved["scheduler.forwards"] == 1


def test_a_deadline_passes_in_the_queue(
    server: LocalServer, client: Client, pool: ThreadPoolExecutor
) -> None:
    """While the engine is paused nothing runs, so a waiting request can only expire."""

    with held_back(server, client, pool, []):
        soon, late = (
            passed_on(client, pool, BODY, headers=timeout(ms)) for ms in (15_000, 120_000)
        )
        assert client.post("/pause_generation", {"mode": "in_place"}).status_code == 200
    assert client.scheduler()["queue"]["requests"] == 2
    held = client.http.post("/v1/score", json=BODY, headers=timeout(200))
    assert held.status_code == 504  # it never reaches the scheduler
    assert soon.result().status_code == 504
    assert not late.done()
    assert client.post("/continue_generation", {}).status_code == 200
    assert late.result().status_code == 200


def test_a_deadline_in_the_future_changes_nothing(client: Client) -> None:
    wanted = client.score(BODY)
    reply = client.http.post("/v1/score", json=BODY, headers=timeout(60_000))
    assert reply.status_code == 200
    assert_same_answer(reply.json(), wanted)


@pytest.mark.parametrize(
    ("header", "value", "least"),
    [(PRIORITY, "high", -(2**31 - 1)), (PRIORITY, "1.5", -(2**31 - 1)), (TIMEOUT, "0", 1)],
)
def test_wrong_headers_are_refused(client: Client, header: str, value: str, least: int) -> None:
    reply = client.http.post("/v1/score", json=BODY, headers={header: value})
    assert reply.status_code == 400
    message = reply.json()["message"]
    assert f"{header}: {value!r} is not a whole number from {least}" in message
    assert "leave the header out" in message


def test_requests_that_opt_out_ignore_the_headers(client: Client) -> None:
    headers = OPT_OUT | {PRIORITY: "high", TIMEOUT: "0"}
    assert client.http.post("/v1/score", json=BODY, headers=headers).status_code == 200


def test_a_generation_goes_on_while_packed_requests_are_always_queued(client: Client) -> None:
    steps = 100

    def ran_beside() -> bool:
        """Whether packed forwards ran between the steps of a generation, which is checked."""
        before = client.scheduler()
        events = stream_events(client, steps)
        after = client.scheduler()
        assert events[-1]["meta_info"]["completion_tokens"] == steps
        decode, mixed = (
            after["iterations"][name]["iterations"] - before["iterations"][name]["iterations"]
            for name in ("decode", "mixed")
        )
        assert mixed <= steps / 2 + 2  # at most every second step waits for a forward
        assert decode + mixed >= steps - 1  # the first token is the prompt's
        forwards = after["counters"]["forwards"] - before["counters"]["forwards"]
        # The slack is for forwards that run while this test's own requests are on their way.
        return mixed > 0 and forwards <= steps / 2 + 50

    with steady_load(client, BODY, workers=2):
        wait_until(ran_beside)  # the clients may have no time to send, or this test be slow


def test_the_status_shows_order_queue_and_pace(client: Client) -> None:
    client.score(BODY)
    scheduler = client.scheduler()
    assert scheduler["order"] == "priority"
    assert scheduler["queue"] == {
        "requests": 0,
        "tokens": 0,
        "rows": 0,
        "bytes": 0,
        "oldest_wait_s": 0.0,
    }
    assert scheduler["tokens_per_s"] > 0
    assert scheduler["counters"]["retried_forwards"] == 0


def test_the_queue_is_in_prometheus(client: Client) -> None:
    client.score(BODY)
    lines = client.http.get("/metrics").text.splitlines()
    for name in ("requests", "tokens", "rows", "bytes", "oldest_wait_s"):
        full = f"sglang:prefill_only_queue_{name}{{"
        assert [line for line in lines if line.startswith(full)], name
    assert [
        line for line in lines if line.startswith("sglang:prefill_only_retried_forwards_total{")
    ]
