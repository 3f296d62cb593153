"""At start both paths answer the same prompts; if the answers differ, the server stays stock.

Without the comparison, wrong answers are not noticed; that server ends with its scheduler.
"""

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

from tests.conftest import IN_FLIGHT
from tests.integration.programs import wrong_readout
from tests.integration.programs.in_servers.sitecustomize import LEFT_IN_FLIGHT
from tests.integration.support.client import OPT_OUT, Client, Json, score_body, wait_until
from tests.integration.support.own_server import Serving, serving
from tests.integration.support.parity import assert_same_answer
from tests.integration.support.processes import passed_on, scheduler_pid, sent, stopped

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

BODIES = [score_body(seed, 10 * seed, [4, 1, 9]) for seed in range(3)]
REASON = "known_answers_differ"
MONITORING = Path(__file__).parents[3] / "docs" / "monitoring.md"


@pytest.fixture(scope="module")
def fault(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a server whose packed answers are wrong."""
    return wrong_readout.install(tmp_path_factory.mktemp("plugin"))


@pytest.fixture(scope="module")
def refused(model_dir: Callable[[str], Path], fault: dict[str, str]) -> Iterator[Serving]:
    with serving(model_dir("micro"), "known_answers", *wrong_readout.FLAGS, env=fault) as running:
        yield running


def test_both_paths_of_a_sound_server_answer_alike(client: Client) -> None:
    verdict = client.scheduler()["known_answers"]
    assert verdict["verdict"] == "same"
    assert verdict["prompts"] == 8
    assert 0 < verdict["largest_difference"] <= verdict["tolerance"] == 1e-4
    assert verdict["seconds"] > 0
    assert client.scheduler()["packed"] is True


def test_known_prompts_are_not_counted_as_requests(refused: Serving) -> None:
    counters = refused.client.scheduler()["counters"]
    assert (counters["forwards"], counters["rows"], counters["tokens_computed"]) == (0, 0, 0)


def test_known_prompts_hold_no_memory(refused: Serving) -> None:
    refused.client.assert_memory_returns_to(wrong_readout.UNUSED_MEMORY)


@pytest.mark.parametrize("body", BODIES)
def test_a_server_that_answers_otherwise_serves_stock(refused: Serving, body: Json) -> None:
    with refused.client.counting() as moved:
        found = refused.client.score(body)
    assert moved["frontend.requests.stock"] == moved[f"frontend.fallbacks.{REASON}"] == 1
    assert moved["frontend.requests.packed"] == moved["scheduler.forwards"] == 0
    assert_same_answer(found, refused.client.score(body, stock=True))


def test_it_says_so(refused: Serving) -> None:
    scheduler = refused.client.scheduler()
    assert (scheduler["packed"], scheduler["declined_reason"]) == (False, REASON)
    verdict = scheduler["known_answers"]
    assert verdict["verdict"] == "differ"
    assert verdict["largest_difference"] == pytest.approx(wrong_readout.OFF_BY, abs=1e-4)
    (line,) = re.findall(r".*Prefill-only serving is OFF.*", refused.server.log_path.read_text())
    for part in (
        r"8 prompts, largest difference 5\.0e-01 at prompt \d \(\d+ tokens",
        r"tolerance 0\.0001",
        r"--prefill-only-attention torch",
        r"--prefill-only-known-answers off",
    ):
        assert re.search(part, line)
    assert f"`{REASON}`" in MONITORING.read_text()


def test_it_still_generates(refused: Serving) -> None:
    assert len(refused.client.generate([5, 6, 7], 8)) == 8


@pytest.fixture(scope="module")
def unchecked(
    model_dir: Callable[[str], Path],
    fault: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Serving]:
    """A server whose packed answers are wrong and compared with nothing; the last test ends it."""
    flags = (*wrong_readout.FLAGS, "--prefill-only-known-answers", "off")
    flags += ("--crash-dump-folder", str(tmp_path_factory.mktemp("crash")))
    with serving(model_dir("micro"), "unchecked", *flags, env=fault | IN_FLIGHT) as running:
        yield running


def test_switched_off_no_known_answers_are_compared(unchecked: Serving) -> None:
    assert LEFT_IN_FLIGHT in unchecked.server.log_path.read_text()
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
            packed = passed_on(client, pool, BODIES[0])
            (stock,) = sent(client, pool, BODIES[1:2], "/v1/score", OPT_OUT)
            os.kill(scheduler, signal.SIGKILL)
        for reply in (packed, stock):
            error = reply.exception()
            assert isinstance(error, httpx.TransportError)
            assert not isinstance(error, httpx.TimeoutException)
    wait_until(lambda: not unchecked.server.pids)
    # A packed call counts as one request; of a stock call, each item counts as one.
    dumped = re.findall(r"finished and (\d+) unfinished", unchecked.server.log_path.read_text())
    assert dumped == [str(1 + len(BODIES[1]["items"]))]
