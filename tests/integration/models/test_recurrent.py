"""Servers whose models have recurrent layers, which carry a state along a prompt."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.support.client import Client, random_ids, score_body
from tests.integration.support.own_server import serving
from tests.integration.support.parity import (
    assert_a_divided_request_agrees,
    assert_paths_agree,
    assert_same,
)

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

FLAGS = ("--enable-prefill-only", "--prefill-only-max-forward-tokens=64")
EXACT = {"SGLANG_MAMBA_CONV_DTYPE": "float32"}
"""SGLang keeps the last inputs of a convolution in bfloat16, whatever the dtype of the model."""
OVERLAP = ("--disable-radix-cache",)
NORMAL = ("--mamba-radix-cache-strategy=no_buffer", "--disable-overlap-schedule")
"""On a CPU SGLang keeps states of prefixes only without overlap."""
SERVERS = {
    "delta-rule-overlap": ("qwen3.5", OVERLAP),
    "delta-rule-normal": ("qwen3.5", NORMAL),
    "state-space-overlap": ("granite4", OVERLAP),
    "state-space-normal": ("granite4", NORMAL),
    "convolution-overlap": ("lfm2", OVERLAP),
}


@pytest.fixture(scope="module", params=SERVERS)
def recurrent_client(
    model_dir: Callable[[str], Path], request: pytest.FixtureRequest
) -> Iterator[Client]:
    preset, flags = SERVERS[request.param]
    name = f"recurrent-{request.param}"
    with serving(model_dir(preset), name, *FLAGS, *flags, env=EXACT) as (_, client):
        yield client


@pytest.mark.patch("P66", "P68", "P69", "P70", "P71", "P72", "P74")
def test_the_known_answers_are_the_same(recurrent_client: Client) -> None:
    assert recurrent_client.scheduler()["known_answers"]["verdict"] == "same"


def test_rows_start_from_the_state_of_their_prefix(recurrent_client: Client) -> None:
    with recurrent_client.counting() as moved:
        assert_paths_agree(recurrent_client, score_body(1, 20, [3, 1, 6, 11]))
    assert moved["scheduler.forwards"] == 1


def test_a_divided_request_goes_on_from_the_state_of_its_prefix(recurrent_client: Client) -> None:
    assert_a_divided_request_agrees(recurrent_client)


def test_requests_at_once_keep_their_states_apart(recurrent_client: Client) -> None:
    bodies = [score_body(seed, 3 + 40 * seed, [2, 9, 5]) for seed in range(4)]
    with ThreadPoolExecutor(len(bodies)) as pool:
        found = list(pool.map(recurrent_client.score, bodies))
    for answer, body in zip(found, bodies, strict=True):
        assert_same(answer, recurrent_client.score(body, stock=True))


@pytest.mark.patch("P67", "P73")
def test_a_generation_goes_on_beside_scores(recurrent_client: Client) -> None:
    ids = random_ids(random.Random(5), 70)
    alone = recurrent_client.generate(ids, 6)
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(recurrent_client.generate, ids, 6)
        assert_paths_agree(recurrent_client, score_body(4, 30, [3, 1]))
        assert beside.result() == alone
