"""LongRoPE: one prompt beyond the original context rotates all prompts of its batch otherwise."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.support.client import Client, generate_body, random_ids, score_body
from tests.integration.support.own_server import serving
from tests.integration.support.parity import assert_paths_agree, assert_same

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

ORIGINAL = 1024
"""Tokens of the model's original context."""


@pytest.fixture(scope="module")
def client(model_dir: Callable[[str], Path]) -> Iterator[Client]:
    flags = ("--enable-prefill-only", "--prefill-only-prefix-caching=always")
    with serving(model_dir("phi3-long"), "long-rope", *flags) as (_, client):
        yield client


def test_prompts_of_the_original_context_are_packed(client: Client) -> None:
    assert client.scheduler()["known_answers"]["verdict"] == "same"
    assert_paths_agree(client, score_body(1, ORIGINAL - 9, [9, 3, 5]))


IDS = random_ids(random.Random(2), ORIGINAL + 1)
LONGER: dict[str, dict[str, Any]] = {
    "/v1/score": score_body(2, ORIGINAL - 9, [3, 10]),
    "/generate": generate_body(IDS, 1),
}


@pytest.mark.parametrize("path", LONGER)
def test_longer_prompts_are_left_to_sglang(client: Client, path: str) -> None:
    with client.counting() as moved:
        found = client.post(path, LONGER[path])
    assert found.status_code == 200
    assert moved["frontend.fallbacks.long_prompt"] == 1
    client.flush()
    assert_same(found.json(), client.post(path, LONGER[path], stock=True).json())


def test_keys_that_a_longer_prompt_left_are_not_read(client: Client) -> None:
    body = score_body(3, 500, [4, 4])
    alone = client.score(body)
    client.flush()
    prompt = body["query"] + random_ids(random.Random(3), 2 * ORIGINAL)
    client.generate(prompt, 1, stock=True)
    with client.counting() as moved:
        assert_same(client.score(body), alone)
    assert moved["frontend.requests.packed"] == 1
