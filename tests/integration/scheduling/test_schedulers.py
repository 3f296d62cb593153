"""Two schedulers on one device: divided memory, balancing by outstanding tokens, death of one."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from sglang_prefill_ext.local_server.environment import CPU_ARGS
from tests.integration.support.client import Client, Json, score_body, wait_until
from tests.integration.support.own_server import Serving, serving
from tests.integration.support.parity import assert_same_answer, assert_tokens_agree
from tests.integration.support.processes import passing_on, schedulers_stopped, sent, stop, stopped

pytestmark = pytest.mark.timeout(900)

SCHEDULERS = 2
LONG = score_body(99, prefix=1000, suffixes=[250] * 80)
"""Many forwards of the budget below."""


@pytest.fixture(scope="module")
def running(model_dir: Callable[[str], Path]) -> Iterator[Serving]:
    # There is one core for each; without the variable, our own groups of cores are used.
    flags = ("--enable-prefill-only", "--prefill-only-schedulers", str(SCHEDULERS))
    cores = ("--prefill-only-scheduler-cores", "1")
    budget = ("--prefill-only-max-forward-tokens", "1024")
    flags = (*flags, *cores, *budget)
    with serving(model_dir("micro"), "schedulers", *flags) as serving_now:
        yield serving_now


@pytest.fixture(scope="module")
def client(running: Serving) -> Client:
    return running.client


def log_of(running: Serving) -> str:
    return running.server.log_path.read_text()


def answered(client: Client) -> list[int]:
    """Requests that each scheduler has answered."""
    found = client.whole_status()["schedulers"]
    return [Counter(one["counters"]["requests"])["ok"] for one in found]


def stock_tokens(client: Client) -> list[int]:
    """Tokens of SGLang's own batches, for each scheduler."""
    found = client.whole_status()["schedulers"]
    return [sum(each["stock_tokens"] for each in one["iterations"].values()) for one in found]


def stock_load(client: Client) -> list[int]:
    """Tokens of SGLang's own requests, as each scheduler last published them."""
    loads = client.http.get("/v1/loads", params={"include": "core"}).json()["loads"]
    return [load["num_used_tokens"] + load["num_waiting_uncached_tokens"] for load in loads]


def pid_of(client: Client, rank: int) -> int:
    pid: int = client.whole_status()["schedulers"][rank]["placement"]["pid"]
    return pid


@contextmanager
def long_request_waits(client: Client) -> Iterator[Future[Json]]:
    """The first scheduler is stopped with a long request, so all other work runs on the others."""
    client.wait_idle()
    wait_until(lambda: not any(stock_load(client)))  # else one might stop with a load still shown
    with ThreadPoolExecutor(1) as pool, stopped(pid_of(client, 0)):
        with passing_on(client):
            answer = pool.submit(client.score, LONG)
        yield answer


def difference(after: list[int], before: list[int]) -> list[int]:
    return [now - then for now, then in zip(after, before, strict=True)]


@pytest.mark.patch("P46")
def test_schedulers_start_one_after_the_other(running: Serving) -> None:
    log = log_of(running)
    steps = [
        *("scheduler 1 of 2 starts", "Launch DP0 starting", "DP0] Memory pool end"),
        *("scheduler 2 of 2 starts", "Launch DP1 starting", "DP1] Memory pool end"),
    ]
    places = [log.index(step) for step in steps]
    assert places == sorted(places)
    assert "the schedulers take the cores that the model computes on from each other" in log


@pytest.mark.patch("P47")
def test_memory_is_divided(running: Serving, client: Client) -> None:
    assert "each of 2 schedulers takes" in log_of(running)
    slots = int(CPU_ARGS[CPU_ARGS.index("--max-total-tokens") + 1])

    def are_divided() -> bool:
        pools = [one["memory"] for one in client.whole_status()["schedulers"]]
        held = [pool["kv_slots_free"] + pool["kv_slots_evictable"] for pool in pools]
        return held == [slots // SCHEDULERS] * SCHEDULERS

    wait_until(are_divided)  # what ran before may hold a slot for a moment


def test_status_shows_each_scheduler_on_its_core(client: Client) -> None:
    schedulers = client.whole_status()["schedulers"]
    assert [one["dp_rank"] for one in schedulers] == [0, 1]
    placements = [one["placement"] for one in schedulers]
    assert len({each["pid"] for each in placements}) == SCHEDULERS
    cores = [each["cores"] for each in placements]
    assert [len(each) for each in cores] == [1, 1]
    assert cores[0] != cores[1]
    assert [each["mps"] for each in placements] == [False, False]


def test_answers_are_those_of_stock(running: Serving, client: Client) -> None:
    bodies = [score_body(seed, 20 + seed, [1 + seed % 5] * 30) for seed in range(32)]
    before = answered(client)
    with ThreadPoolExecutor(len(bodies)) as pool:
        with schedulers_stopped(running.server):  # so that all wait at the same time
            replies = sent(client, pool, bodies, "/v1/score")
        answers = [reply.result().json() for reply in replies]
    ran = difference(answered(client), before)
    assert sum(ran) == len(bodies)
    assert min(ran) > 0
    for body, answer in zip(bodies[:8], answers[:8], strict=True):
        assert_same_answer(answer, client.score(body, stock=True))
    for seed in range(2):
        assert_tokens_agree(client, seed)


def test_requests_avoid_the_scheduler_with_more_tokens(client: Client) -> None:
    before, stock_before = answered(client), stock_tokens(client)
    with long_request_waits(client) as long:
        for seed in range(6):
            client.score(score_body(seed, 30, [4] * 5))
        assert len(client.generate([5, 6, 7], 4)) == 4
        assert not long.done()
    answer = long.result()
    assert difference(answered(client), before) == [1, 6]
    first, second = difference(stock_tokens(client), stock_before)
    assert (first, second) == (0, 3 + 3)  # the prompt, and all but the last token
    assert_same_answer(answer, client.score(LONG, stock=True))


def test_a_prefix_returns_to_the_scheduler_that_saw_it(client: Client) -> None:
    body = score_body(7, 200, [4] * 5)
    with long_request_waits(client) as long:
        client.score(body)
    long.result()
    before = answered(client)
    for _ in range(2):
        client.score(body)
    assert difference(answered(client), before) == [0, 2]


def test_nothing_is_left_behind(client: Client) -> None:
    def memory() -> list[Json]:
        client.wait_idle()
        assert client.http.post("/flush_cache", params={"timeout": 30}).status_code == 200
        found: list[Json] = [one["memory"] for one in client.whole_status()["schedulers"]]
        return found

    before = memory()
    bodies = [score_body(seed, 100, [30] * 20) for seed in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(client.score, bodies))
    assert memory() == before


def test_when_one_scheduler_dies_callers_get_an_error_and_the_server_ends(
    running: Serving, client: Client
) -> None:
    client.wait_idle()
    small = [score_body(seed, 30, [4] * 5) for seed in range(5)]
    victim = pid_of(client, 0)
    with ThreadPoolExecutor(8) as pool:
        stop(victim)
        with passing_on(client):
            lost = pool.submit(client.score, LONG)
        assert client.score(small[0])["scores"]
        os.kill(victim, signal.SIGKILL)
        others = [pool.submit(client.score, body) for body in small]
        error, *later = (reply.exception(timeout=120) for reply in (lost, *others))
    assert isinstance(error, httpx.TransportError)
    assert not isinstance(error, httpx.TimeoutException)
    assert all(each is None or isinstance(each, httpx.TransportError) for each in later)
    wait_until(lambda: not running.server.pids)
