"""EmbeddingGemma: an encoder with the layers of a decoder, and means instead of first tokens."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from tests.integration.support.client import Client, random_ids
from tests.integration.support.own_server import serving
from tests.integration.support.parity import TOLERANCE, assert_same, both

pytestmark = pytest.mark.timeout(900)

WINDOW = 513
"""Tokens of the longest prompt of which every token sees every other one."""
TEXTS = ["a red shoe", "a warm coat for winter", "rain"]
PROMPTS = [random_ids(random.Random(length), length) for length in (1, 9, 300, WINDOW)]
LONG = random_ids(random.Random(2), WINDOW + 1)


@pytest.fixture(scope="module")
def client(model_dir: Callable[[str], Path]) -> Iterator[Client]:
    flags = ("--enable-prefill-only", "--sleep-on-idle", "--mem-fraction-static", "0.3")
    flags += ("--json-model-override-args", '{"is_matryoshka": true}')
    with serving(model_dir("embedding-gemma"), "embedding_gemma", *flags) as running:
        yield running.client


@pytest.fixture(scope="module")
def vector(model_dir: Callable[[str], Path]) -> Callable[[list[int]], list[float]]:
    """The embedding of a prompt in Hugging Face."""
    model: Any = AutoModel.from_pretrained(model_dir("embedding-gemma"), dtype=torch.float32)

    @torch.inference_mode()
    def mean(ids: list[int]) -> list[float]:
        state = model(torch.tensor([ids])).last_hidden_state[0].mean(dim=0)
        found: list[float] = (state / state.norm()).tolist()
        return found

    return mean


@pytest.mark.patch("P80")
def test_both_paths_answered_the_known_prompts_alike(client: Client) -> None:
    assert client.scheduler()["known_answers"]["verdict"] == "same"


@pytest.mark.parametrize("given", ["a red shoe", TEXTS, PROMPTS[1], PROMPTS], ids=str)
def test_embeddings(client: Client, given: Any) -> None:
    both(client, "/v1/embeddings", {"model": "m", "input": given})


@pytest.mark.parametrize("given", [{"text": TEXTS}, {"text": "rain"}, {"input_ids": PROMPTS}])
def test_native_route(client: Client, given: Any) -> None:
    both(client, "/encode", given)


def test_texts_end_with_the_token_that_the_tokenizer_leaves_out(
    client: Client, model_dir: Callable[[str], Path], vector: Callable[[list[int]], list[float]]
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_dir("embedding-gemma"))
    prompts = [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in TEXTS]
    answer = both(client, "/v1/embeddings", {"model": "m", "input": TEXTS})
    found = [each["embedding"] for each in answer["data"]]
    np.testing.assert_allclose(found, list(map(vector, prompts)), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("dimensions", [16, 128])
def test_shortened_vectors_have_unit_length(client: Client, dimensions: int) -> None:
    body = {"model": "m", "input": TEXTS, "dimensions": dimensions}
    answer = both(client, "/v1/embeddings", body)
    for each in answer["data"]:
        assert np.linalg.norm(each["embedding"]) == pytest.approx(1.0, abs=TOLERANCE)


@pytest.mark.patch("P80")
def test_longer_prompts_than_a_window_take_the_stock_path(
    client: Client, vector: Callable[[list[int]], list[float]]
) -> None:
    with client.counting() as moved:
        answer = client.post("/v1/embeddings", {"model": "m", "input": [LONG, PROMPTS[1]]}).json()
    assert moved["frontend.fallbacks.long_prompt"] == 1
    assert_same([each["embedding"] for each in answer["data"]], [vector(LONG), vector(PROMPTS[1])])


def test_embeddings_in_place_of_tokens_are_refused(client: Client) -> None:
    body = {"model": "m", "input": [[5, 6, 7]], "embed_override_token_id": 6}
    response = client.post("/v1/embeddings", body | {"embed_overrides": [[[0.5] * 128]]})
    assert response.status_code == 400
    assert "an encoder takes none" in response.text


def test_nothing_is_held_afterwards(client: Client) -> None:
    before = client.memory()
    both(client, "/encode", {"input_ids": PROMPTS})
    client.assert_memory_returns_to(before)
