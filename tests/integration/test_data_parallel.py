"""Two data-parallel replicas share the packed work; each request runs on exactly one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.client import Client, Json, score_body, wait_until
from tests.integration.own_server import TWO_RANKS, serving
from tests.integration.parity import assert_same_answer, assert_tokens_agree

pytestmark = pytest.mark.timeout(900)

LONG = {"prefix": 1000, "suffixes": [250] * 80}
"""Many forwards of the budget below: seconds of work, interruptible between two forwards."""


@pytest.fixture(scope="module")
def client(model_dir: Callable[[str], Path]) -> Iterator[Client]:
    flags = ("--enable-prefill-only", "--dp-size", "2")
    budget = ("--prefill-only-max-forward-tokens", "1024")
    model = model_dir("micro")
    with serving(model, "data_parallel", *flags, *budget, env=TWO_RANKS) as running:
        yield running.client


def ended(client: Client) -> list[Counter[str]]:
    """Requests by how they ended, one counter a replica."""
    return [Counter(one["counters"]["requests"]) for one in client.status()["schedulers"]]


def queued(client: Client) -> int:
    return sum(one["queue"]["requests"] for one in client.status()["schedulers"])


def test_status_lists_both_replicas(client: Client) -> None:
    schedulers = client.status()["schedulers"]
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
def test_loads_count_packed_work(client: Client) -> None:
    def waiting() -> list[Json]:
        answer = client.http.get("/v1/loads", params={"include": "core"}).json()
        return [load for load in answer["loads"] if load["num_waiting_reqs"]]

    bodies = [score_body(seed, **LONG) for seed in range(24)]
    with ThreadPoolExecutor(len(bodies)) as pool:
        answers = list(map(pool.submit, [client.score] * len(bodies), bodies))
        wait_until(lambda: queued(client) >= 4)
        # What waits stays in a pause.
        assert client.post("/pause_generation", {"mode": "in_place"}).status_code == 200
        try:
            seen = waiting()
        finally:
            assert client.post("/continue_generation", {}).status_code == 200
        for answer in answers:
            answer.result()
    assert seen
    assert all(load["num_total_tokens"] > 1000 for load in seen)
    wait_until(lambda: not waiting())  # loads are told from time to time


def test_aborts_reach_every_replica(client: Client) -> None:
    bodies = [score_body(seed, **LONG) for seed in range(24)]
    before = ended(client)
    with ThreadPoolExecutor(len(bodies)) as pool:
        answers = [pool.submit(client.post, "/v1/score", body) for body in bodies]
        wait_until(lambda: queued(client) >= 4)
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
    before = client.collect_garbage("stats")
    assert [each["role"] for each in before] == roles
    # The message goes round once for each replica, and is acted on once.
    after = client.collect_garbage("collect")
    counted = [
        new["collections"][2] - old["collections"][2]
        for old, new in zip(before, after, strict=True)
    ]
    assert counted == [1] * len(roles)
