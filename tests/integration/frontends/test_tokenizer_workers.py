"""Two front-end processes, in which SGLang itself loads no plugins, both pack."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.support.client import Client, Json, generate_body, score_body, wait_until
from tests.integration.support.own_server import Serving, serving
from tests.integration.support.parity import assert_same_answer, assert_tokens_agree
from tests.integration.support.processes import scheduler_pid, sent, stopped, tokens_under_way

pytestmark = pytest.mark.timeout(900)

PATIENT = {"SGLANG_UVICORN_WORKER_HEALTHCHECK_TIMEOUT": "300"}
"""Seconds; a worker that does not answer for longer than the default of 10 s is killed."""


@pytest.fixture(scope="module")
def running(model_dir: Callable[[str], Path]) -> Iterator[Serving]:
    flags = ("--enable-prefill-only", "--tokenizer-worker-num", "2")
    model = model_dir("micro")
    with serving(model, "tokenizer_workers", *flags, env=PATIENT) as running:
        yield running


@pytest.fixture(scope="module")
def client(running: Serving) -> Client:
    return running.client


def on_new_connection(client: Client, body: Json) -> Json:
    """The kernel chooses the worker when a connection is accepted."""
    fresh = Client(str(client.http.base_url))
    with fresh.http:
        return fresh.score(body)


def workers(client: Client) -> dict[int, Json]:
    """The status of both workers' front ends, by process id."""
    found: dict[int, Json] = {}

    def both_seen() -> bool:
        fresh = Client(str(client.http.base_url))
        with fresh.http:
            frontend = fresh.status()["frontend"]
        found[frontend["pid"]] = frontend
        return len(found) == 2

    wait_until(both_seen)
    return found


def test_both_workers_pack(client: Client) -> None:
    bodies = [score_body(seed, 3 * seed, [1 + seed % 4] * 12) for seed in range(1, 81)]
    before, after, asked = workers(client), dict[int, Json](), 0

    def both_have_packed() -> bool:
        nonlocal after, asked
        with ThreadPoolExecutor(8) as pool:
            answers[:] = pool.map(lambda body: on_new_connection(client, body), bodies)
        after, asked = workers(client), asked + len(bodies)
        packed = [each["counters"]["requests"].get("packed", 0) for each in after.values()]
        assert sum(packed) == asked
        return min(packed) > 0

    answers: list[Json] = []
    wait_until(both_have_packed)  # a worker that is stopped accepts no connections meanwhile
    assert set(after) == set(before)
    for frontend in after.values():
        assert frontend["counters"]["fallbacks"] == {}
        assert {p["applied"] for p in frontend["patches"] if p["group"] == "frontend"} == {True}
    for body, answer in zip(bodies[::5], answers[::5], strict=True):
        assert_same_answer(answer, client.score(body, stock=True))


def test_one_scheduler_did_it_all(client: Client) -> None:
    scheduler = client.scheduler()
    answered = sum(one["counters"]["requests"]["packed"] for one in workers(client).values())
    assert scheduler["counters"]["requests"] == {"ok": answered}


def test_text_and_generation(client: Client) -> None:
    body = {
        "query": "which of these is a fruit? ",
        "items": ["apple", "chair", ""],
        "label_token_ids": [5, 9],
        "apply_softmax": True,
    }
    assert_same_answer(on_new_connection(client, body), client.score(body, stock=True))
    assert len(client.generate([5, 6, 7], 12)) == 12


def packed_in_all(client: Client) -> int:
    counters = [each["counters"]["requests"] for each in workers(client).values()]
    return sum(each.get("packed", 0) for each in counters)


def test_log_probs_and_tokens_agree(client: Client) -> None:
    before = packed_in_all(client)
    for seed in range(4):
        fresh = Client(str(client.http.base_url))
        with fresh.http:
            assert_tokens_agree(fresh, seed)
    assert packed_in_all(client) == before + 4 * 2


@contextmanager
def connected_to(client: Client, *, busy: bool) -> Iterator[Client]:
    """A client whose connection is to a worker that has a packed request under way, or has none."""
    with ExitStack() as opened:

        def is_found() -> bool:
            nonlocal fresh
            fresh = Client(str(client.http.base_url))
            opened.enter_context(fresh.http)
            return bool(tokens_under_way(fresh)) == busy

        fresh = client
        wait_until(is_found)
        yield fresh


@pytest.mark.patch("P13", "P45")
@pytest.mark.parametrize("prompts", [[5, 6, 7], [[5, 6, 7], [5, 8]]], ids=["one", "several"])
def test_a_call_is_aborted_by_asking_the_other_worker(
    running: Serving, client: Client, prompts: Any
) -> None:
    """SGLang names the prompts of a list after the name of the call."""
    body = generate_body(prompts, 1) | {"rid": "mine"}
    with ThreadPoolExecutor() as pool:
        with stopped(scheduler_pid(running.server)):
            mine = pool.submit(client.post, "/generate", body)
            with connected_to(client, busy=True):
                (pause,) = sent(client, pool, [{"mode": "in_place"}], "/pause_generation")
        assert pause.result().status_code == 200
        try:
            with connected_to(client, busy=False) as other:
                assert other.post("/abort_request", {"rid": "mine"}).status_code == 200
            assert mine.result(timeout=60).status_code == 503
        finally:
            client.post("/continue_generation", {}).raise_for_status()
    assert client.generate([5, 6, 7], 1)


@pytest.mark.patch("P43", "P44", "P45")
def test_garbage_collection_is_controlled_in_every_process(
    running: Serving, client: Client
) -> None:
    # Each worker freezes after a warm-up of its own.
    wait_until(lambda: running.server.log_path.read_text().count("ready to roll") == 2)
    before = client.collect_garbage("stats")
    roles = ["detokenizer", "scheduler", "tokenizer", "tokenizer", "tokenizer_router"]
    assert [each["role"] for each in before] == roles
    assert len({each["pid"] for each in before}) == len(roles)
    assert all(each["frozen"] > 100_000 for each in before)  # since the warm-up

    unfrozen = client.collect_garbage("unfreeze")
    assert [each["frozen"] for each in unfrozen] == [0] * len(roles)
    assert all(sum(each["objects"]) > 100_000 for each in unfrozen)

    collected = client.collect_garbage("collect")
    for old, new in zip(unfrozen, collected, strict=True):
        assert new["pid"] == old["pid"]
        assert new["collections"][2] > old["collections"][2]
        assert new["pauses"]["count"] > old["pauses"]["count"]
        assert new["pauses"]["longest_ms"] > 0

    frozen = client.collect_garbage("freeze")
    assert all(each["frozen"] > 100_000 > sum(each["objects"]) for each in frozen)
    assert [each["pid"] for each in frozen] == [each["pid"] for each in before]
    assert all(each["thresholds"] == [10_000, 10, 10] for each in frozen)


def test_the_server_ends_with_its_scheduler(running: Serving) -> None:
    """The last test; until SGLang's handler of SIGQUIT runs, uvicorn's supervisor lives on."""
    os.kill(scheduler_pid(running.server), signal.SIGKILL)
    wait_until(lambda: not running.server.running)
    wait_until(lambda: not running.server.pids)
