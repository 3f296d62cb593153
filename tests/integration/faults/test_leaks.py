"""Nothing accumulates: memory pools, queues, threads and files end as they began."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest

from sglang_prefill_ext.local_server import LocalServer
from tests.integration.support.client import Client, Json, score_body
from tests.integration.support.processes import (
    leave,
    open_files,
    passed_on,
    scheduler_pid,
    stopped,
    threads,
)

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

SMALL = score_body(1, 60, [20] * 10)
LONG = score_body(2, 500, [100] * 400)
GENERATION = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 40}}
WRONG = [SMALL | {"items": [[8_000]]}, SMALL | {"items": [[]], "query": []}, {"items": 3}]


def mixed_load(server: LocalServer, client: Client, pool: ThreadPoolExecutor) -> list[int]:
    """Requests of every kind and fate, several at a time; return their statuses."""

    def send(path: str, body: Json, stock: bool = False) -> Future[httpx.Response]:
        return pool.submit(client.post, path, body, stock=stock)

    answered = [send("/v1/score", body) for body in [SMALL, LONG, *WRONG] * 2]
    answered += [send("/v1/score", SMALL, stock=True), send("/generate", GENERATION)]
    statuses = [one.result().status_code for one in answered]
    with stopped(scheduler_pid(server)):  # so that nothing is done before the abort comes
        aborted = [passed_on(client, pool, body) for body in [SMALL, LONG] * 3]
        aborted += [send("/v1/score", SMALL, stock=True), send("/generate", GENERATION)]
        for _ in range(3):
            leave(client, LONG)
        client.post("/abort_request", {"rid": "", "abort_all": True})
    return statuses + [one.result().status_code for one in aborted]


def test_the_pools_of_sglang_are_as_before(
    server: LocalServer, client: Client, pool: ThreadPoolExecutor
) -> None:
    before = client.memory()
    assert before["kv_slots_protected"] == 0
    statuses = mixed_load(server, client, pool)
    assert {200, 400, 503} <= set(statuses)
    client.assert_memory_returns_to(before)
    status = client.status()
    assert status["frontend"]["in_flight"] == 0
    (scheduler,) = status["schedulers"]
    assert set(scheduler["queue"].values()) == {0}


def test_packed_requests_that_are_sent_once_take_no_slot_at_all(client: Client) -> None:
    client.flush()  # else the prefix that the large one holds for a while may evict others
    before = client.scheduler()["memory"]
    # Seeds that no other test uses: what the server has seen before is put into the cache.
    for body in (score_body(6_301, 60, [20] * 10), score_body(6_302, 500, [100] * 400)):
        client.score(body)
    assert client.scheduler()["memory"] == before


def test_processes_keep_their_threads_and_files(server: LocalServer, client: Client) -> None:
    def resources() -> dict[int, tuple[int, int]]:
        return {pid: (threads(pid), open_files(pid)) for pid in server.pids}

    def send(times: int) -> None:
        for _ in range(times):
            client.score(SMALL)
            client.post("/v1/score", WRONG[0])
            client.status()

    send(60)  # thread pools fill up once
    before = resources()
    send(200)
    after = resources()
    assert after.keys() == before.keys()
    for pid, numbers in after.items():
        for now, then in zip(numbers, before[pid], strict=True):
            assert now - then <= 5
