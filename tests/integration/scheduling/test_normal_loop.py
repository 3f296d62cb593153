"""What the shared server does not run: the normal event loop, gRPC, HTTP/2, streaming sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path

import httpx
import pytest

from sglang_prefill_ext.process.ports import free_port
from tests.integration.support import native_grpc
from tests.integration.support.client import Client, Json, generate_body, score_body, wait_until
from tests.integration.support.generation import assert_generation_is_undisturbed
from tests.integration.support.own_server import Serving, serving
from tests.integration.support.parity import (
    assert_paths_agree,
    assert_same_answer,
    assert_same_answers,
)
from tests.integration.support.processes import leave, scheduler_pid, sent, stopped

pytestmark = pytest.mark.timeout(900)

LONG = {"prefix": 1000, "suffixes": [250] * 400}
"""Many forwards of the budget below: seconds of work, interruptible between two forwards."""


@pytest.fixture(scope="module")
def grpc_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def running(model_dir: Callable[[str], Path], grpc_port: int) -> Iterator[Serving]:
    flags = ("--enable-prefill-only", "--disable-overlap-schedule", "--enable-http2")
    flags += ("--grpc-port", str(grpc_port), "--enable-streaming-session")
    budget = ("--prefill-only-max-forward-tokens", "1024")
    with serving(model_dir("micro"), "normal_loop", *flags, *budget) as running:
        yield running


@pytest.fixture(scope="module")
def client(running: Serving) -> Client:
    return running.client


def test_the_loop_is_the_normal_one(client: Client) -> None:
    info = client.http.get("/server_info").json()
    assert info["disable_overlap_schedule"] is True


@pytest.mark.parametrize(
    ("prefix", "suffixes"), [(40, [3] * 20), (0, [5, 9, 2]), (12, [1]), (1500, [100] * 6)]
)
def test_packed_and_stock_agree(client: Client, prefix: int, suffixes: list[int]) -> None:
    assert_paths_agree(client, score_body(prefix, prefix, suffixes))


def test_a_prefix_longer_than_a_forward_is_cached_and_holds_nothing_afterwards(
    client: Client,
) -> None:
    client.flush()
    before, body = client.memory(), score_body(31, 2500, [5, 7])
    answers, computed, cached = [], [], []
    for _ in range(3):
        with client.counting() as moved:
            answers.append(client.score(body))
        computed.append(moved["scheduler.tokens_computed"])
        cached.append(moved["scheduler.tokens_cached"])
    # Seen once, then kept, then used.
    assert cached == [0, 0, 2500]
    assert computed == [2512, 2512, 12]
    client.assert_memory_returns_to(before)
    assert_same_answers(answers, [client.score(body, stock=True)] * len(answers))


def test_an_aborted_request_of_many_forwards_holds_nothing_afterwards(client: Client) -> None:
    before, seeds = client.memory(), count(32)

    def is_aborted_while_it_runs() -> bool:
        def has_begun_or_ended() -> bool:
            free: int = client.scheduler()["memory"]["kv_slots_free"]
            return free <= before["kv_slots"] - 3000 or answer.done()

        client.flush()
        body = score_body(next(seeds), 3000, [250] * 200)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(client.post, "/v1/score", body)
            wait_until(has_begun_or_ended)
            ran = not answer.done()
            assert client.post("/abort_request", {"abort_all": True}).status_code == 200
            return ran and answer.result().status_code == 503

    wait_until(is_aborted_while_it_runs)  # it may have ended before that is seen
    client.assert_memory_returns_to(before)


def test_generation_beside_scoring(client: Client) -> None:
    bodies = [score_body(seed, 200, [20] * 20) for seed in range(20)]
    assert_generation_is_undisturbed(client, bodies, new_tokens=100)


def queued(running: Serving, pool: Executor) -> list[Future[httpx.Response]]:
    """Send 16 long requests; return when most of them wait, however slowly they were sent."""
    client, bodies = running.client, [score_body(seed, **LONG) for seed in range(16)]
    with stopped(scheduler_pid(running.server)):
        answers = sent(client, pool, bodies, "/v1/score")
    wait_until(lambda: client.scheduler()["queue"]["requests"] >= 10)
    return answers


def test_flush_waits_for_packed_work(running: Serving, client: Client) -> None:
    with ThreadPoolExecutor(16) as pool:
        answers = queued(running, pool)
        during = client.post("/flush_cache", None)
        assert during.status_code == 400
        assert [answer.result().status_code for answer in answers] == [200] * 16
    client.flush()


def test_abort_ends_queued_work(running: Serving, client: Client) -> None:
    with client.counting() as moved, ThreadPoolExecutor(16) as pool:
        answers = queued(running, pool)
        assert client.post("/abort_request", {"abort_all": True}).status_code == 200
        statuses = [answer.result().status_code for answer in answers]
    assert statuses.count(503) >= 3
    assert moved["scheduler.requests.aborted"] == statuses.count(503)
    assert moved["frontend.requests.aborted"] == statuses.count(503)


def test_a_client_that_leaves_ends_its_work(running: Serving, client: Client) -> None:
    with client.counting() as moved:
        with stopped(scheduler_pid(running.server)):
            leave(client, score_body(2, **LONG))
        client.wait_idle()
    assert moved["scheduler.requests.aborted"] == 1
    assert moved["frontend.requests.aborted"] == 1


async def at_once_over_http2(client: Client, bodies: list[Json]) -> list[Json]:
    """The answers to scoring requests that share one connection."""
    url, one = client.http.base_url, httpx.Limits(max_connections=1)
    async with httpx.AsyncClient(
        base_url=url, http1=False, http2=True, timeout=60, limits=one
    ) as http:
        answers = await asyncio.gather(*(http.post("/v1/score", json=body) for body in bodies))
    assert {answer.http_version for answer in answers} == {"HTTP/2"}
    return [answer.json() for answer in answers]


def test_requests_that_share_a_connection_are_packed(client: Client) -> None:
    bodies = [score_body(seed, 30, [5, 1, 8]) for seed in range(20)]
    with client.counting() as moved:
        answers = asyncio.run(at_once_over_http2(client, bodies))
    assert moved["frontend.requests.packed"] == len(bodies)
    assert_same_answers(answers, [client.score(body, stock=True) for body in bodies])


def test_native_grpc_is_packed(client: Client, grpc_port: int) -> None:
    body = score_body(4, 30, [5, 1, 8])
    with client.counting() as moved:
        status, answer = native_grpc.score(f"127.0.0.1:{grpc_port}", body)
    assert status == 200, answer
    assert moved["frontend.requests.packed"] == 1
    assert_same_answer(answer, client.score(body, stock=True))


def test_native_grpc_reports_wrong_requests(client: Client, grpc_port: int) -> None:
    body = score_body(4, 30, [5]) | {"items": [[8_000]]}
    status, answer = native_grpc.score(f"127.0.0.1:{grpc_port}", body)
    assert status == 400
    assert "8000" in str(answer)
    assert client.http.get("/health_generate").status_code == 200


@pytest.mark.patch("P77")
def test_turns_of_a_busy_streaming_session_that_end_a_plain_server(client: Client) -> None:
    opened = client.post("/open_session", {"capacity_of_str_len": 100, "streaming": True}).json()

    def turn(ids: list[int] | list[list[int]], new_tokens: int) -> Json:
        return generate_body(ids, new_tokens) | {"session_params": {"id": opened}}

    def refusal(ids: list[int] | list[list[int]]) -> str:
        response = client.post("/generate", turn(ids, 2))
        assert response.status_code == 400, response.text
        message: str = response.json()["error"]["message"]
        return message

    busy = "Streaming session already has an active request."
    assert refusal([[5], [6]]) == busy
    wait_until(lambda: client.post("/generate", turn([7], 2)).status_code == 200)
    with client.http.stream("POST", "/generate", json=turn([8], 4_000) | {"stream": True}) as long:
        lines = long.iter_lines()  # kept, as the connection would close with it
        assert next(lines).startswith("data: {")
        assert [refusal([9]), refusal([9])] == [busy, busy]
    client.post("/close_session", {"session_id": opened})
    assert client.http.get("/health_generate").status_code == 200
