"""Gemma 2 on a live server: soft caps of scores and logits, and a window shorter than the prompts.

Without a GPU SGLang leaves out the cap of attention scores, so that the known answers differ; the
server is told not to ask, and Hugging Face says what is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.integration.support.client import Client, Json, score_body
from tests.integration.support.override_bodies import body_with
from tests.integration.support.own_server import serving
from tests.integration.support.parity import TOLERANCE
from tests.integration.support.reference import Reference

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

FLAGS = ("--enable-prefill-only", "--prefill-only-known-answers", "off")
QUERY, ITEMS = 100, [5, 40, 1]
GREEDY = {"max_new_tokens": 1, "temperature": 0}


@pytest.fixture(scope="module")
def gemma(model_dir: Callable[[str], Path]) -> Iterator[Client]:
    with serving(model_dir("gemma2"), "gemma2", *FLAGS) as (_, client):
        yield client


@pytest.fixture(scope="module")
def exact(model_dir: Callable[[str], Path]) -> Reference:
    return Reference(model_dir("gemma2"))


def log_probs(answer: Json) -> list[np.ndarray]:
    return [np.array(row) for row in answer["token_logprobs"]]


def test_scores_are_those_of_hugging_face_with_a_prefix_fresh_or_cached(
    gemma: Client, exact: Reference
) -> None:
    body = score_body(91, QUERY, ITEMS)
    wanted = exact.logprobs(body, list(range(len(ITEMS))))
    cached = []
    for _ in range(3):
        with gemma.counting() as moved:
            answer = gemma.score(body)
        assert moved["frontend.requests.packed"] == 1
        cached.append(moved["scheduler.tokens_cached"])
        for found, row in zip(log_probs(answer), wanted, strict=True):
            np.testing.assert_allclose(found, row, rtol=TOLERANCE, atol=TOLERANCE)
    assert cached[0] == 0
    assert cached[-1] > 64  # longer than the window


@pytest.mark.patch("P10")
def test_embeddings_that_sglangs_model_cannot_take_end_nothing(gemma: Client) -> None:
    body = body_with(95, 20, [3, 4], 1, 1, hidden=128)
    refused = gemma.post("/v1/score", body, stock=True)
    assert refused.status_code == 400
    assert "embed_overrides: 2 in the place of tokens" in refused.json()["message"]
    assert "Gemma2ForCausalLM" in refused.json()["message"]
    with gemma.counting() as moved:
        gemma.score(body)
        gemma.score(score_body(95, 20, [3, 4]), stock=True)
    assert moved["frontend.requests.packed"] == moved["frontend.requests.stock"] == 1


def test_sglang_here_leaves_out_the_cap(gemma: Client, exact: Reference) -> None:
    body = score_body(92, QUERY, ITEMS)
    wanted = exact.logprobs(body, [0])[0]
    stock = log_probs(gemma.score(body, stock=True))[0]
    assert np.abs(stock - wanted).max() > 100 * TOLERANCE


@pytest.mark.patch("P54")
def test_every_read_out_caps_its_logits(gemma: Client, exact: Reference) -> None:
    prompts = [score_body(seed, 60, [])["query"] for seed in (93, 94)]
    options = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 3}
    body = {"input_ids": prompts, "sampling_params": GREEDY, **options}
    with gemma.counting() as moved:
        answers = gemma.post("/generate", body).json()
    assert moved["frontend.requests.packed"] == len(prompts)
    for prompt, answer in zip(prompts, answers, strict=True):
        right = exact.all_logprobs(prompt)
        found = [value for value, _, _ in answer["meta_info"]["input_token_logprobs"][1:]]
        wanted = right[np.arange(len(prompt) - 1), prompt[1:]]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=TOLERANCE)
        assert answer["output_ids"] == [int(right[-1].argmax())]
        top = [value for value, _, _ in answer["meta_info"]["output_top_logprobs"][0]]
        best = np.sort(right[-1])[::-1][:3]
        np.testing.assert_allclose(top, best, rtol=1e-5, atol=TOLERANCE)
