"""A server whose model reads images too: text is packed, requests with images are SGLang's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_prefill_ext.modelmaker.tokenizer import IMAGE_TOKENS
from tests.integration.support.client import Client, score_body
from tests.integration.support.override_bodies import body_with
from tests.integration.support.own_server import serving
from tests.integration.support.parity import assert_paths_agree, both
from tests.integration.support.pictures import picture

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

START, END, IMAGE, _ = IMAGE_TOKENS.values()
BEGINNING = "A text that is long enough to be kept, and with which both requests begin. " * 3
LABELS = [9, 17]


FLAGS = ("--enable-prefill-only", "--prefill-only-prefix-caching=always")


@pytest.fixture(scope="module")
def multimodal_client(model_dir: Callable[[str], Path]) -> Iterator[Client]:
    with serving(model_dir("qwen3-vl"), "multimodal", *FLAGS) as (_, client):
        yield client


def generation(text: str, **fields: Any) -> dict[str, Any]:
    sampling = {"max_new_tokens": 1, "temperature": 0}
    return {"text": text, "sampling_params": sampling, "return_logprob": True, **fields}


def test_the_known_answers_are_the_same(multimodal_client: Client) -> None:
    assert multimodal_client.scheduler()["known_answers"]["verdict"] == "same"


def test_text_is_packed(multimodal_client: Client) -> None:
    assert_paths_agree(multimodal_client, score_body(1, 40, [3, 1, 6]))
    texts = {"query": "Is it red? ", "items": ["a boot", "a lamp"], "label_token_ids": LABELS}
    assert_paths_agree(multimodal_client, texts)


def test_the_name_of_an_image_without_one_is_text(multimodal_client: Client) -> None:
    query = f"{START}{IMAGE}{END} Is it red? "
    body = {"query": query, "items": ["a boot", "a lamp"], "label_token_ids": LABELS}
    assert_paths_agree(multimodal_client, body)


def test_a_token_is_packed_unless_there_is_an_image(multimodal_client: Client) -> None:
    text = f"{START}{IMAGE}{END} red"
    unseen = both(multimodal_client, "/generate", generation(text))
    with multimodal_client.counting() as moved:
        seen = multimodal_client.post("/generate", generation(text, image_data=picture("red")))
    assert seen.status_code == 200, seen.text
    assert moved["frontend.fallbacks.multimodal"] == 1
    logprobs = [each["meta_info"]["output_token_logprobs"] for each in (unseen, seen.json())]
    assert logprobs[0] != logprobs[1]


def test_what_an_image_request_leaves_in_the_cache_serves_text(multimodal_client: Client) -> None:
    seen = generation(f"{BEGINNING}{START}{IMAGE}{END}", image_data=picture("red"))
    assert multimodal_client.post("/generate", seen).status_code == 200
    body = {"query": BEGINNING, "items": [" a", " b c"], "label_token_ids": LABELS}
    with multimodal_client.counting() as moved:
        assert_paths_agree(multimodal_client, body)
    assert moved["scheduler.tokens_cached"] > 30


def test_what_sglang_has_cached_serves_a_model_with_positions_from_1(
    model_dir: Callable[[str], Path],
) -> None:
    body = score_body(2, 60, [3, 1])
    with serving(model_dir("gemma3-vl"), "gemma3-vl", *FLAGS) as (_, client):
        client.generate(body["query"], 1, stock=True)
        with client.counting() as moved:
            assert_paths_agree(client, body)
    assert moved["scheduler.tokens_cached"] == 60


def test_a_model_whose_layers_share_keys_and_look_tokens_up(
    model_dir: Callable[[str], Path],
) -> None:
    with serving(model_dir("gemma4-e"), "gemma4-e", *FLAGS) as (_, client):
        assert client.scheduler()["known_answers"]["verdict"] == "same"
        assert_paths_agree(client, score_body(1, 60, [3, 1, 40]))
        query = f"{START}{IMAGE}{END} Is it red? "  # names, without a picture
        assert_paths_agree(
            client, {"query": query, "items": ["a boot", "a lamp"], "label_token_ids": LABELS}
        )
        placed = client.post("/v1/score", body_with(3, 9, [2, 4], 1, 1, hidden=128))
        assert placed.status_code == 400
        assert "takes none" in placed.text
