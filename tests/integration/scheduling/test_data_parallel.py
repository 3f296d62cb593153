"""Two data-parallel replicas share the packed work; each request runs on exactly one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.integration.support.client import Client, Json, score_body, wait_until
from tests.integration.support.own_server import TWO_RANKS, Serving, serving
from tests.integration.support.parity import assert_same_answer, assert_tokens_agree
from tests.integration.support.processes import schedulers_stopped, tokens_under_way

pytestmark = pytest.mark.timeout(900)

LONG = {"prefix": 1000, "suffixes": [250] * 80}
LONG_TOKENS = 1000 + 250 * 80
"""Many forwards of the budget below, interruptible between two of them."""
MANY = 24


@pytest.fixture(scope="module")
def running(model_dir: Callable[[str], Path]) -> Iterator[Serving]:
    flags = ("--enable-prefill-only", "--dp-size", "2")
    budget = ("--prefill-only-max-forward-tokens", "1024")
    model = model_dir("micro")
    with serving(model, "data_parallel", *flags, *budget, env=TWO_RANKS) as running:
        wait_until(lambda: len(running.client.status()["schedulers"]) == 2)
        yield running


@pytest.fixture(scope="module")
def client(running: Serving) -> Client:
    return running.client


@contextmanager
def many_wait(running: Serving, pool: ThreadPoolExecutor) -> Iterator[list[Future[httpx.Response]]]:
    """Send both schedulers long requests, which they read only when the block is left."""
    bodies = [score_body(seed, **LONG) for seed in range(MANY)]
    client, post = running.client, running.client.post
    with schedulers_stopped(running.server):
        answers = [pool.submit(post, "/v1/score", body) for body in bodies]
        wait_until(lambda: tokens_under_way(client) == MANY * LONG_TOKENS)
        yield answers


def ended(client: Client) -> list[Counter[str]]:
    """Counters of requests by how they ended, one per replica."""
    return [Counter(one["counters"]["requests"]) for one in client.whole_status()["schedulers"]]


def test_status_lists_both_replicas(client: Client) -> None:
    schedulers = client.whole_status()["schedulers"]
    assert [one["dp_rank"] for one in schedulers] == [0, 1]
    for one in schedulers:
        assert one["packed"]
        assert {patch["applied"] for patch in one["patches"] if patch["group"] == "scheduler"} == {
            True
        }


@pytest.mark.patch("P30")
def test_each_request_runs_on_one_replica(client: Client) -> None:
    bodies = [score_body(seed, 20 + seed, [1 + seed % 5] * 30) for seed in range(32)]
    before = ended(client)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(client.score, bodies))
    ran = [now["ok"] - then["ok"] for now, then in zip(ended(client), before, strict=True)]
    assert sum(ran) == len(bodies)
    assert min(ran) > 0
    for body, answer in zip(bodies[:8], answers[:8], strict=True):
        assert_same_answer(answer, client.score(body, stock=True))


def test_log_probs_and_tokens_agree(client: Client) -> None:
    before = ended(client)
    for seed in range(4):
        assert_tokens_agree(client, seed)
    assert sum(map(Counter.total, ended(client))) == sum(map(Counter.total, before)) + 4


def test_a_request_over_the_budget(client: Client) -> None:
    body = score_body(3, prefix=1500, suffixes=[100] * 6)
    assert_same_answer(client.score(body), client.score(body, stock=True))


@pytest.mark.patch("P14")
def test_loads_count_packed_work(running: Serving, client: Client) -> None:
    def waiting() -> list[Json]:
        answer = client.http.get("/v1/loads", params={"include": "core"}).json()
        return [load for load in answer["loads"] if load["num_waiting_reqs"]]

    seen: list[Json] = []

    def some_waited() -> bool:
        """Whether a load that was reported before all answers came shows waiting requests."""
        with ThreadPoolExecutor(MANY) as pool:
            with many_wait(running, pool) as answers:
                pass
            while not seen and not all(answer.done() for answer in answers):
                seen.extend(waiting())
            assert {answer.result().status_code for answer in answers} == {200}
        return bool(seen)

    wait_until(some_waited)
    assert all(load["num_total_tokens"] > 1000 for load in seen)
    wait_until(lambda: not waiting())


def test_aborts_reach_every_replica(running: Serving, client: Client) -> None:
    before = ended(client)
    with ThreadPoolExecutor(MANY) as pool:
        with many_wait(running, pool) as answers:
            assert client.post("/abort_request", {"abort_all": True}).status_code == 200
        statuses = Counter(answer.result().status_code for answer in answers)
    assert set(statuses) <= {200, 503}
    assert statuses[503] >= 4
    after = ended(client)
    aborted = [b["aborted"] - a["aborted"] for b, a in zip(after, before, strict=True)]
    assert sum(aborted) == statuses[503]
    assert min(aborted) > 0
    short = score_body(1, 10, [3, 4])
    assert_same_answer(client.score(short), client.score(short, stock=True))


def test_generation_still_works(client: Client) -> None:
    assert len(client.generate([5, 6, 7], 12)) == 12
    assert client.http.get("/health_generate").status_code == 200


def test_every_process_reports_its_garbage_collection(client: Client) -> None:
    roles = ["detokenizer", "dp_controller", "scheduler", "scheduler", "tokenizer"]

    def collected_once() -> bool:
        """The message is passed on once to each replica, and is acted on once.

        A process may collect by itself as well, but not every time.
        """
        before, after = client.collect_garbage("stats"), client.collect_garbage("collect")
        assert [each["role"] for each in before] == [each["role"] for each in after] == roles
        counted = [
            new["collections"][2] - old["collections"][2]
            for old, new in zip(before, after, strict=True)
        ]
        assert min(counted) >= 1
        return counted == [1] * len(roles)

    wait_until(collected_once)
