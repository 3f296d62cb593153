"""Pauses, cache flushes and weight updates while packed requests are queued."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from sglang_prefill_ext.local_server import LocalServer
from tests.integration.support.client import Client, generate_body, score_body, wait_until
from tests.integration.support.load import steady_load
from tests.integration.support.parity import assert_same_answer, assert_same_answers
from tests.integration.support.processes import begun, held_back, in_flight, sent

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

BODIES = [score_body(seed, 60, [20] * 10) for seed in range(3)]


@pytest.fixture
def new_weights(model_dir: Callable[[str], Path]) -> dict[str, str]:
    """A weight update that loads the same weights again."""
    return {"model_path": str(model_dir("micro"))}


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_a_pause_holds_queued_requests_back(
    server: LocalServer, client: Client, pool: ThreadPoolExecutor, mode: str
) -> None:
    wanted = [client.score(body) for body in BODIES]
    with client.counting() as moved:
        with held_back(server, client, pool, BODIES) as replies:
            assert client.post("/pause_generation", {"mode": mode}).status_code == 200
        queue = client.scheduler()["queue"]
        assert (queue["requests"], queue["tokens"], queue["rows"]) == (3, 3 * 260, 3 * 10)
        assert queue["bytes"] > 4 * queue["tokens"]
        assert queue["oldest_wait_s"] > 0
        later = pool.submit(client.score, BODIES[0])
    assert not later.done()
    assert not any(reply.done() for reply in replies)
    assert moved["scheduler.forwards"] == 0
    assert client.post("/continue_generation", {}).status_code == 200
    assert_same_answers([reply.result().json() for reply in replies], wanted)
    assert_same_answer(later.result(), wanted[0])


def test_a_pause_in_place_answers_what_is_in_flight(
    server: LocalServer, client: Client, pool: ThreadPoolExecutor
) -> None:
    wanted = client.score(BODIES[0])
    with in_flight(server, client, pool, BODIES[0]) as reply:
        (pause,) = sent(client, pool, [{"mode": "in_place"}], "/pause_generation")
    assert pause.result().status_code == 200
    assert_same_answer(reply.result(timeout=60).json(), wanted)


@pytest.mark.patch("P10")
def test_a_retracting_pause_leaves_nothing_in_flight(
    server: LocalServer, client: Client, pool: ThreadPoolExecutor, new_weights: dict[str, str]
) -> None:
    wanted = client.score(BODIES[0])
    with in_flight(server, client, pool, BODIES[0]) as reply:
        (pause,) = sent(client, pool, [{"mode": "retract"}], "/pause_generation")
    assert pause.result().status_code == 200
    assert_same_answer(reply.result(timeout=60).json(), wanted)
    assert client.http.post("/flush_cache").status_code == 200
    update = client.post("/update_weights_from_disk", new_weights)
    assert update.json()["success"], update.text
    assert client.post("/continue_generation", {}).status_code == 200


def test_clients_that_leave_in_a_pause_end_their_calls(
    server: LocalServer, client: Client, pool: ThreadPoolExecutor
) -> None:
    wanted, token = client.score(BODIES[0]), generate_body([5, 6, 7], 1)
    calls = [("/v1/score", BODIES[0]), ("/generate", token), ("/v1/score", BODIES[1])]
    before = client.counters()

    def aborted() -> int:
        return client.counters()["frontend.requests.aborted"] - before["frontend.requests.aborted"]

    with held_back(server, client, pool, BODIES[:1]) as replies:
        assert client.post("/pause_generation", {"mode": "in_place"}).status_code == 200
    with ExitStack() as connections:
        for path, body in calls:
            connections.enter_context(closing(begun(client, path, body)))
        for _ in range(20):  # by then the front end has read the requests, and waits
            client.http.get("/model_info").raise_for_status()
        assert aborted() == 0
    wait_until(lambda: aborted() == len(calls))
    assert not replies[0].done()
    assert client.scheduler()["queue"]["requests"] == 1
    assert client.post("/continue_generation", {}).status_code == 200
    assert_same_answer(replies[0].result().json(), wanted)
    client.wait_idle()
    assert_same_answer(client.score(BODIES[0]), wanted)
    assert aborted() == len(calls)


def test_a_pause_that_aborts_ends_queued_requests(
    server: LocalServer, client: Client, pool: ThreadPoolExecutor
) -> None:
    with held_back(server, client, pool, BODIES) as replies:
        (pause,) = sent(client, pool, [{"mode": "abort"}], "/pause_generation")
    assert pause.result().status_code == 200
    assert {reply.result().status_code for reply in replies} == {503}
    assert client.post("/continue_generation", {}).status_code == 200
    assert client.score(BODIES[0])["scores"]


def test_an_idle_server_flushes(client: Client) -> None:
    client.wait_idle()
    assert client.http.post("/flush_cache").status_code == 200


@pytest.mark.patch("P12")
def test_a_flush_is_refused_while_requests_are_queued(
    server: LocalServer, client: Client, pool: ThreadPoolExecutor
) -> None:
    with held_back(server, client, pool, BODIES) as replies:
        (flush,) = sent(client, pool, [{}], "/flush_cache")
    assert flush.result().status_code == 400
    assert {reply.result().status_code for reply in replies} == {200}


def test_a_flush_with_a_timeout_waits_for_queued_requests(
    server: LocalServer, client: Client, pool: ThreadPoolExecutor
) -> None:
    with client.counting() as moved:
        with held_back(server, client, pool, BODIES) as replies:
            (flush,) = sent(client, pool, [{}], "/flush_cache?timeout=60")
        assert flush.result().status_code == 200
    assert moved["frontend.requests.packed"] == len(BODIES)
    assert {reply.result().status_code for reply in replies} == {200}


def test_a_retracting_pause_lets_the_cache_be_flushed_and_weights_be_updated(
    server: LocalServer, client: Client, pool: ThreadPoolExecutor, new_weights: dict[str, str]
) -> None:
    wanted = [client.score(body) for body in BODIES]
    with held_back(server, client, pool, BODIES) as replies:
        client.post("/pause_generation", {"mode": "retract"})
    assert client.http.post("/flush_cache").status_code == 200
    update = client.post("/update_weights_from_disk", new_weights)
    assert (update.status_code, update.json()["success"]) == (200, True), update.text
    client.post("/continue_generation", {})
    assert_same_answers([reply.result().json() for reply in replies], wanted)


def test_a_weight_update_waits_for_requests_under_way(
    server: LocalServer, client: Client, pool: ThreadPoolExecutor, new_weights: dict[str, str]
) -> None:
    wanted = [client.score(body) for body in BODIES]
    with held_back(server, client, pool, BODIES) as replies:
        (update,) = sent(client, pool, [new_weights], "/update_weights_from_disk")
        assert not update.done()
    assert update.result().json()["success"], update.result().text
    assert_same_answers([reply.result().json() for reply in replies], wanted)


def test_weight_updates_under_load(client: Client, new_weights: dict[str, str]) -> None:
    with steady_load(client, BODIES[0]) as answers:
        for _ in range(3):
            update = client.post("/update_weights_from_disk", new_weights)
            assert update.json()["success"], update.text
    assert_same_answers(answers, [answers[0]] * len(answers))
