"""A scheduler that stands still, and one whose wrong answers nobody notices until it dies."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from sglang_prefill_ext.local_server import LocalServer
from tests.conftest import IN_FLIGHT
from tests.integration import wrong_readout
from tests.integration.client import Client, score_body, wait_until
from tests.integration.own_server import Serving, serving
from tests.integration.parity import assert_same_answers
from tests.integration.processes import scheduler_pid, stopped

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


def test_a_status_after_a_silent_scheduler_is_a_fresh_one(
    server: LocalServer, client: Client
) -> None:
    with stopped(scheduler_pid(server)):
        assert client.status()["schedulers"] == []
    for _ in range(3):
        before = client.scheduler()["counters"]["forwards"]
        client.score(BODIES[0])
        assert client.scheduler()["counters"]["forwards"] == before + 1


@pytest.fixture(scope="module")
def unchecked(
    model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serving]:
    """A server whose packed answers are wrong and compared with nothing; the last test ends it."""
    fault = wrong_readout.install(tmp_path_factory.mktemp("plugin"))
    flags = (*wrong_readout.FLAGS, "--prefill-only-known-answers", "off")
    flags += ("--crash-dump-folder", str(tmp_path_factory.mktemp("crash")))
    with serving(model_dir("micro"), "unchecked", *flags, env=fault | IN_FLIGHT) as running:
        yield running


def test_switched_off_no_known_answers_are_compared(unchecked: Serving) -> None:
    client = unchecked.client
    client.assert_memory_returns_to(wrong_readout.UNUSED_MEMORY)
    scheduler = client.scheduler()
    assert scheduler["known_answers"] == {"verdict": "off"}
    assert scheduler["packed"] is True
    wrong = client.score(BODIES[1])["token_logprobs"]
    right = client.score(BODIES[1], stock=True)["token_logprobs"]
    off_by = np.array(wrong) - np.array(right)
    np.testing.assert_allclose(off_by, wrong_readout.OFF_BY, atol=1e-4)


def test_when_the_scheduler_dies_clients_get_an_error_and_the_server_ends(
    unchecked: Serving,
) -> None:
    client, scheduler = unchecked.client, scheduler_pid(unchecked.server)
    with ThreadPoolExecutor() as pool:
        assert client.score(BODIES[0])["scores"]
        with stopped(scheduler):
            packed = pool.submit(client.post, "/v1/score", BODIES[0])
            stock = pool.submit(client.post, "/v1/score", BODIES[1], stock=True)
            wait_until(lambda: client.status()["frontend"]["in_flight"] == 1)
            os.kill(scheduler, signal.SIGKILL)
        for reply in (packed, stock):
            error = reply.exception()
            assert isinstance(error, httpx.TransportError)
            assert not isinstance(error, httpx.TimeoutException)
    wait_until(lambda: not unchecked.server.pids)
    # A packed call is one, and every item of the other one is.
    dumped = re.findall(r"finished and (\d+) unfinished", unchecked.server.log_path.read_text())
    assert dumped == [str(1 + len(BODIES[1]["items"]))]
