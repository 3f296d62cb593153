"""Embeddings in place of tokens: packed, stock and Hugging Face give the same numbers."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_prefill_ext.client import EmbedOverrides, PrefillClient
from tests.integration.support.client import Client, Json, score_body
from tests.integration.support.override_bodies import HIDDEN, PLACEHOLDER, body_with, embeds
from tests.integration.support.parity import (
    TOLERANCE,
    assert_paths_agree,
    assert_refused_alike,
    assert_same_answer,
)
from tests.integration.support.reference import Reference

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]


def form(array: Any, dtype: str = "float32") -> Json:
    array = np.asarray(array, dtype)
    data = base64.b64encode(array.tobytes()).decode()
    return {"dtype": dtype, "shape": list(array.shape), "data": data}


@st.composite
def bodies(draw: st.DrawFn) -> Json:
    suffixes = draw(st.lists(st.integers(0, 12), min_size=1, max_size=12))
    body = body_with(
        draw(st.integers(0, 2**16)),
        draw(st.integers(1, 60)),
        suffixes,
        draw(st.integers(0, 3)),
        draw(st.integers(0, 3)),
    )
    items, own = body["items"], body["item_embed_overrides"]
    for copy in draw(st.lists(st.integers(0, len(items) - 1), max_size=3)):
        items[copy] = items[0]  # equal tokens, other embeddings
    for copy in draw(st.lists(st.integers(0, len(items) - 1), max_size=2)):
        items[copy], own[copy] = items[0], own[0]
    for plain in draw(st.lists(st.integers(0, len(items) - 1), max_size=2)):
        own[plain] = None
    return body


@settings(max_examples=25)
@given(bodies())
def test_random_requests_are_stocks(client: Client, body: Json) -> None:
    assert_paths_agree(client, body)


@pytest.mark.parametrize(
    ("prefix", "suffixes", "in_query", "in_item"),
    [
        pytest.param(40, [1] * 60, 0, 1, id="compressed-items"),
        pytest.param(0, [0, 0, 0], 3, 2, id="embeddings-alone"),
        pytest.param(300, [5, 60], 40, 0, id="many-in-the-query"),
    ],
)
def test_requests_are_those_of_hugging_face(
    client: Client,
    reference: Reference,
    prefix: int,
    suffixes: list[int],
    in_query: int,
    in_item: int,
) -> None:
    body = body_with(prefix, prefix, suffixes, in_query, in_item)
    with client.counting() as moved:
        answer = assert_paths_agree(client, body)
    rows = [0, len(suffixes) // 2, len(suffixes) - 1]
    found = [answer["token_logprobs"][row] for row in rows]
    np.testing.assert_allclose(found, reference.logprobs(body, rows), rtol=0, atol=TOLERANCE)
    query = len(body["query"])
    assert moved["frontend.tokens_computed"] <= query + sum(map(len, body["items"]))


def test_texts_have_placeholders_too(client: Client, reference: Reference) -> None:
    token = reference.tokenizer.encode("<pad>", add_special_tokens=False)
    token = token if len(token) == 1 else [reference.tokenizer.pad_token_id]
    text = reference.tokenizer.decode(token)
    body = {
        "query": f"A query about {text} and",
        "items": [f" one {text}{text}", " another one", f"{text}"],
        "label_token_ids": [5, 9],
        "embed_override_token_id": token[0],
        "query_embed_overrides": embeds(1, 1).tolist(),
        "item_embed_overrides": [embeds(2, 2).tolist(), None, embeds(3, 1).tolist()],
    }
    assert_paths_agree(client, body)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_base64_is_the_same_on_both_paths(client: Client, dtype: str) -> None:
    body = body_with(5, 30, [3, 4, 5], 2, 2)
    wanted = client.score(body)
    query, items = body["query_embed_overrides"], body["item_embed_overrides"]
    whole = {
        "query_embed_overrides": form(query, dtype),
        "item_embed_overrides": form(items, dtype),
    }
    assert_same_answer(assert_paths_agree(client, body | whole), wanted)
    listed = [form(each, dtype) for each in items]
    assert_same_answer(assert_paths_agree(client, body | {"item_embed_overrides": listed}), wanted)
    explained = client.post("/prefill_only/explain", body | whole).json()
    assert (explained["path"], explained["rows"]) == ("packed", 3)


def test_the_python_client_sends_arrays(client: Client) -> None:
    body = body_with(6, 30, [3, 4, 5], 2, 2)
    wanted = client.score(body | {"apply_softmax": True})
    overrides = EmbedOverrides(
        PLACEHOLDER,
        query=np.array(body["query_embed_overrides"]),
        items=np.array(body["item_embed_overrides"], np.float16),
    )
    url = str(client.http.base_url)
    with PrefillClient(url, max_items_per_request=2) as python:
        scores = python.score(
            body["query"], body["items"], body["label_token_ids"], embed_overrides=overrides
        )
    np.testing.assert_allclose(scores.scores, wanted["scores"], rtol=0, atol=TOLERANCE)


def test_embeddings_are_never_taken_for_one_another(client: Client, reference: Reference) -> None:
    """Requests with equal ids and different embeddings, on a server that caches prefixes."""
    body = body_with(7, 80, [4, 9], 1, 0) | {"item_embed_overrides": None}
    plain = {name: value for name, value in body.items() if "embed" not in name}
    for seed in (1, 2, None, 1, 2, None):
        asked = body | {"query_embed_overrides": seed and embeds(seed, 1).tolist()}
        asked = asked if seed else plain
        answer = client.score(asked)
        wanted = reference.logprobs(asked, [0, 1])
        np.testing.assert_allclose(answer["token_logprobs"], wanted, rtol=0, atol=TOLERANCE)


WIDE = [[0.5] * (HIDDEN + 1)]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"query_embed_overrides": WIDE}, "query_embed_overrides[0]: the shape is"),
        ({"item_embed_overrides": [WIDE, None]}, "item_embed_overrides[0][0]: the shape is"),
        (
            {"item_embed_overrides": [WIDE, embeds(1, 2).tolist()]},  # the number is wrong, too
            "item_embed_overrides[0][0]: the shape is",
        ),
        ({"query_embed_overrides": form(WIDE)}, "query_embed_overrides: the shape is"),
        (
            {"query_embed_overrides": form([[np.nan] * HIDDEN])},
            "query_embed_overrides[0]: a number is NaN",
        ),
    ],
)
@pytest.mark.parametrize("stock", [False, True], ids=["packed", "stock"])
def test_what_would_break_the_scheduler_is_refused_on_both_paths(
    client: Client, fields: Json, said: str, stock: bool
) -> None:
    neither = {"query_embed_overrides": None, "item_embed_overrides": None}
    body = body_with(8, 10, [1, 2], 1, 1) | neither | fields
    answer = client.post("/v1/score", body, stock=stock)
    assert answer.status_code == 400, answer.text
    assert said.partition(":")[2] in answer.json()["message"]
    assert stock or answer.json()["message"].startswith(said)
    client.score(score_body(1, 3, [2]))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"query_embed_overrides": {"shape": [1, HIDDEN]}}, "not an object of dtype, shape"),
        ({"query_embed_overrides": form([1.0])}, "query_embed_overrides.shape: [1]"),
        ({"query_embed_overrides": form(WIDE) | {"data": "*"}}, "query_embed_overrides.data"),
        ({"item_embed_overrides": form(WIDE, "float64")}, "item_embed_overrides.dtype: 'float64'"),
    ],
)
def test_malformed_arrays_are_refused_by_name(client: Client, fields: Json, said: str) -> None:
    answer = client.post("/v1/score", body_with(8, 10, [1, 2], 1, 1) | fields)
    assert answer.status_code == 400, answer.text
    assert said in answer.json()["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"embed_override_token_id": None},
        {"item_first": True},
        {"query_embed_overrides": embeds(1, 2).tolist()},
        {"item_embed_overrides": [embeds(1, 1).tolist()]},
        {"item_embed_overrides": [embeds(1, 2).tolist(), None]},
        {"items": [[5], [-1]]},
        {"query": [-1], "query_embed_overrides": None},
    ],
    ids=[
        *("no-token", "item-first", "query-count", "too-few-items", "item-count"),
        *("item-count-and-id", "id"),
    ],
)
def test_what_stock_refuses_is_refused_in_its_words(client: Client, fields: Json) -> None:
    body = body_with(9, 10, [1, 2], 1, 1) | fields
    assert_refused_alike(client, "/v1/score", body)


QUESTION: Json = {
    "id": "q",
    "type": "choice",
    "question": "What is it?",
    "options": [{"name": "cat"}, {"name": "dog"}],
}


def test_decisions_take_embeddings_in_their_input(client: Client, reference: Reference) -> None:
    token = reference.tokenizer.encode("犬", add_special_tokens=False)[0]
    other = QUESTION | {"id": "r", "question": "Is it something else?"}
    body = {
        "input": "An item: 犬!",
        "questions": [QUESTION, other],
        "return_prompt_token_ids": True,
    }
    plain = client.post("/v1/decisions", body).json()["answers"]
    count = plain["q"]["prompt_token_ids"].count(token)
    assert count > 0
    given = embeds(4, count)
    asked = body | {
        "embed_override_token_id": token,
        "input_embed_overrides": form(given, "float16"),
    }
    packed, stock = (client.post("/v1/decisions", asked, stock=stock) for stock in (False, True))
    assert (packed.status_code, stock.status_code) == (200, 200), (packed.text, stock.text)
    for name, found in packed.json()["answers"].items():
        replay = {
            "query": found["prompt_token_ids"],
            "items": [[]],
            "label_token_ids": found["label_token_ids"],
            "embed_override_token_id": token,
            "query_embed_overrides": given.tolist(),
        }
        (wanted,) = np.exp(reference.logprobs(replay, [0]))
        probabilities = list(found["probabilities"].values())
        np.testing.assert_allclose(probabilities, wanted / wanted.sum(), atol=TOLERANCE)
        others = list(stock.json()["answers"][name]["probabilities"].values())
        np.testing.assert_allclose(probabilities, others, rtol=0, atol=TOLERANCE)
        assert probabilities != list(plain[name]["probabilities"].values())


def test_decisions_name_what_is_wrong(client: Client) -> None:
    body: Json = {"input": "A text.", "questions": [QUESTION]}
    for fields, said in (
        ({"input_embed_overrides": form(embeds(1, 1))}, "embed_override_token_id: None"),
        (
            {"input_embed_overrides": embeds(1, 1).tolist(), "embed_override_token_id": 5},
            "input_embed_overrides: not an object",
        ),
        (
            {"input_embed_overrides": form(embeds(1, 1)), "embed_override_token_id": 5},
            "occurrences of embed_override_token_id=5",
        ),
        ({"query_embed_overrides": form(embeds(1, 1))}, "extra_forbidden"),
    ):
        answer: httpx.Response = client.post("/v1/decisions", body | fields)
        assert answer.status_code == 400, answer.text
        assert said in answer.text


def test_setwise_calls_need_no_flags(client: Client, reference: Reference) -> None:
    """SGLang refuses them on a server that caches prefixes or divides prompts."""
    token = reference.tokenizer.convert_ids_to_tokens(PLACEHOLDER)
    body = body_with(11, 30, [9, 20], 0, 2)
    body = {name: value for name, value in body.items() if "embed" not in name}
    body |= {"return_token_logprobs": False, "score_extraction_token": token}
    assert client.post("/v1/score", body, stock=True).status_code == 400
    for item, matrix in zip(body["items"], client.score(body)["scores"], strict=True):
        places = [place for place, one in enumerate(item) if one == PLACEHOLDER]
        beginnings = {**body, "items": [item[: place + 1] for place in places]}
        wanted = np.exp(reference.logprobs(beginnings, [0, 1]))
        np.testing.assert_allclose(matrix, wanted, rtol=0, atol=TOLERANCE)
