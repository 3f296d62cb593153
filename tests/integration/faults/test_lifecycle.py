"""Packed requests end exactly once: answered, aborted, or abandoned by their client."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from sglang_prefill_ext.local_server import LocalServer
from tests.integration.support.client import Client, score_body, wait_until
from tests.integration.support.load import steady_load
from tests.integration.support.parity import assert_same_answer, assert_same_answers
from tests.integration.support.processes import (
    begun,
    held_back,
    leave,
    scheduler_pid,
    stopped,
    tokens_under_way,
)

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

SMALL = score_body(1, 60, [20] * 10)
LONG = score_body(2, 500, [200] * 400)  # five forwards, seconds on a CPU
ABORT_ALL = {"rid": "", "abort_all": True}


def test_a_client_that_leaves_the_queue_costs_no_forward(
    server: LocalServer, client: Client, pool: ThreadPoolExecutor
) -> None:
    wanted = client.score(SMALL)
    with client.counting() as moved:
        with held_back(server, client, pool, []):
            leave(client, SMALL)
        client.wait_idle()
    assert moved["frontend.requests.aborted"] == 1
    assert moved["scheduler.requests.aborted"] == 1
    assert moved["scheduler.forwards"] == 0
    assert_same_answer(client.score(SMALL), wanted)


def test_a_client_that_leaves_half_way_leaves_nothing_behind(
    server: LocalServer, client: Client
) -> None:
    with client.counting() as moved:
        # The client leaves while the scheduler is stopped; work continues until this is noticed.
        with stopped(scheduler_pid(server)), closing(begun(client, "/v1/score", LONG)):
            wait_until(lambda: tokens_under_way(client) > 0)
        client.wait_idle()
    ended = {name: moved[f"scheduler.requests.{name}"] for name in ("ok", "aborted")}
    assert sum(ended.values()) == 1
    assert moved["scheduler.requests.failed"] == 0
    assert moved["frontend.requests.packed"] + moved["frontend.requests.aborted"] == 1
    assert client.score(SMALL)["usage"]["prompt_tokens"] == 800


@pytest.mark.patch("P13")
def test_aborting_everything_ends_queued_requests_with_an_error(
    server: LocalServer, client: Client, pool: ThreadPoolExecutor
) -> None:
    with client.counting() as moved:
        with held_back(server, client, pool, [SMALL] * 5) as replies:
            assert client.post("/abort_request", ABORT_ALL).status_code == 200
        answers = [reply.result() for reply in replies]
    assert {answer.status_code for answer in answers} == {503}
    assert all("aborted" in answer.json()["message"] for answer in answers)
    assert moved["frontend.requests.aborted"] == 5
    assert moved["scheduler.requests.aborted"] == 5
    assert moved["scheduler.forwards"] == 0


def test_aborting_everything_under_way_ends_each_request_once(
    client: Client, pool: ThreadPoolExecutor
) -> None:
    wanted = client.score(LONG)
    with client.counting() as moved:
        replies = [pool.submit(client.post, "/v1/score", LONG) for _ in range(3)]
        while not all(reply.done() for reply in replies):
            client.post("/abort_request", ABORT_ALL)
        answers = [reply.result() for reply in replies]
    statuses = [answer.status_code for answer in answers]
    assert set(statuses) <= {200, 503}
    good = [answer.json() for answer in answers if answer.status_code == 200]
    assert_same_answers(good, [wanted] * len(good))
    for side, name in (("frontend", "packed"), ("scheduler", "ok")):
        assert moved[f"{side}.requests.{name}"] == statuses.count(200)
        assert moved[f"{side}.requests.aborted"] == statuses.count(503)


def test_aborting_an_unknown_request_disturbs_nobody(client: Client) -> None:
    with steady_load(client, SMALL) as answers:
        for rid in ("nobody", "packed-"):
            assert client.post("/abort_request", {"rid": rid}).status_code == 200
    assert_same_answers(answers, [answers[0]] * len(answers))


def test_equal_requests_at_the_same_time_get_equal_answers(
    client: Client, pool: ThreadPoolExecutor
) -> None:
    wanted = client.score(SMALL)
    with client.counting() as moved:
        answers = list(pool.map(client.score, [SMALL] * 16))
    assert_same_answers(answers, [wanted] * 16)
    assert moved["frontend.requests.packed"] == 16


@pytest.mark.parametrize("path", ["/health", "/health_generate"])
def test_health_answers_under_load(client: Client, path: str) -> None:
    with steady_load(client, score_body(3, 200, [30] * 200)):
        for _ in range(3):
            assert client.http.get(path, timeout=60).status_code == 200
