"""Prompts of calls for vectors, and what is the same for embeddings and classes."""

from __future__ import annotations

import random
from typing import Any

from tests.integration.support.client import random_ids
from tests.integration.support.own_server import Serving

RNG = random.Random(5)
PROMPTS = [random_ids(RNG, length) for length in (1, 7, 40, 300)]
INSTRUCTED = [random_ids(random.Random(1), 50) + prompt for prompt in PROMPTS]
TEXTS = ["a red shoe", "A red shoe.", "rain in spring", "ÿ ½ 東京 🙂"]
ADAPTER = "an-adapter"


def refusal_of(serving: Serving, positions: list[Any], *, stock: bool = False) -> int:
    """The status of an answer that names the positions."""
    body = {"input_ids": [5, 6, 7], "token_indices_to_pool": positions}
    response = serving.client.post("/classify", body, stock=stock)
    assert "token_indices_to_pool" in response.json()["error"]["message"]
    return response.status_code
