"""At start both paths answer the same prompts; where they differ the server stays stock."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration import wrong_readout
from tests.integration.client import Client, Json, score_body
from tests.integration.own_server import Serving, serving
from tests.integration.parity import assert_same_answer

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

BODIES = [score_body(seed, 10 * seed, [4, 1, 9]) for seed in range(3)]
REASON = "known_answers_differ"
MONITORING = Path(__file__).parents[2] / "docs" / "monitoring.md"


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
    assert 0 < verdict["seconds"] < 10
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
