"""Requests while the scheduler is stopped."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from sglang_prefill_ext.local_server import LocalServer
from tests.integration.support.client import Client, Json, score_body, wait_until
from tests.integration.support.parity import assert_same_answers
from tests.integration.support.processes import scheduler_pid, stopped

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

BODIES = [score_body(seed, 60, [20] * 10) for seed in range(4)]


def test_clients_wait_for_a_scheduler_that_stands_still(
    server: LocalServer, client: Client, pool: ThreadPoolExecutor
) -> None:
    wanted = [client.score(body) for body in BODIES]
    with stopped(scheduler_pid(server)):
        replies = [pool.submit(client.score, body) for body in BODIES]
        status = client.status()
        assert status["schedulers"] == []  # silent ones are left out
        assert not any(reply.done() for reply in replies)
    assert_same_answers([reply.result() for reply in replies], wanted)
    assert client.score(BODIES[0], stock=True)["usage"] == wanted[0]["usage"]


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
def test_a_request_whose_client_has_left_is_dropped(
    server: LocalServer, client: Client, path: str
) -> None:
    """This includes requests that have a record of SGLang's, as all but the simplest ones have."""
    body: Json = {"rid": "left", "text": "a b", "sampling_params": {"max_new_tokens": 1}}
    if path == "/v1/completions":
        body = {"model": "m", "prompt": "a b", "max_tokens": 1}
    with stopped(scheduler_pid(server)):
        with pytest.raises(httpx.ReadTimeout):
            client.http.post(path, json=body, timeout=0.5)
        wait_until(lambda: not client.status()["frontend"]["in_flight"])
    assert client.post(path, body).status_code == 200


def test_a_status_after_a_silent_scheduler_is_a_fresh_one(
    server: LocalServer, client: Client
) -> None:
    with stopped(scheduler_pid(server)):
        assert client.status()["schedulers"] == []
    for _ in range(3):
        before = client.scheduler()["counters"]["forwards"]
        client.score(BODIES[0])
        assert client.scheduler()["counters"]["forwards"] == before + 1
