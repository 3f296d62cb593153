"""Packed, stock and Hugging Face give the same numbers, whatever the shape of the request."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.integration.support.client import LABELS, Client, Json, random_ids, score_body
from tests.integration.support.parity import TOLERANCE, assert_paths_agree, assert_same
from tests.integration.support.reference import Reference

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

TEXTS = [
    "plain words",
    "",
    " ",
    " \t\n  \n many   spaces ",
    "naïve café",
    "e\u0301 combining \u0928\u093f",
    "漢字とかな",
    "😀👩\u200d👩\u200d👧 family",
    "\u202eright to left\u202c שלום",
    "a" * 300,
]


@st.composite
def bodies(draw: st.DrawFn) -> Json:
    """Requests of every kind that is packed, given as token ids."""
    suffixes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=30))
    prefix = draw(st.integers(0 if all(suffixes) else 1, 150))
    body = score_body(draw(st.integers(0, 2**32)), prefix, suffixes)
    for copy in draw(st.lists(st.integers(0, len(suffixes) - 1), max_size=3)):
        body["items"][copy] = body["items"][0]
    if draw(st.booleans()):
        rng = draw(st.randoms(use_true_random=False))
        body["label_token_ids"] = [rng.sample(LABELS, rng.randint(1, 4)) for _ in suffixes]
    if draw(st.booleans()):
        body |= {"apply_softmax": True, "temperature": draw(st.sampled_from([0.5, 1, 3.0]))}
    body["item_first"] = draw(st.booleans())
    body["return_token_logprobs"] = draw(st.booleans())
    return body


@settings(max_examples=40)
@given(bodies())
def test_random_requests(client: Client, body: Json) -> None:
    assert_paths_agree(client, body)


@pytest.mark.parametrize(
    ("prefix", "suffixes"),
    [
        pytest.param(0, [7], id="one-item-no-query"),
        pytest.param(30, [0], id="one-empty-item"),
        pytest.param(30, [0, 1, 2], id="empty-item-among-others"),
        pytest.param(2_000, [1], id="long-query-one-item"),
        pytest.param(2_000, [3, 300, 40, 1] * 5, id="long-query-uneven-items"),
        pytest.param(60, [2] * 300, id="many-short-items"),
        pytest.param(0, [300] * 40, id="no-common-prefix"),
        pytest.param(180, [10] * 120, id="reranking"),
    ],
)
def test_named_shapes_against_hugging_face(
    client: Client, reference: Reference, prefix: int, suffixes: list[int]
) -> None:
    body = score_body(prefix, prefix, suffixes)
    answer = assert_paths_agree(client, body)
    rows = random.Random(1).sample(range(len(suffixes)), min(len(suffixes), 12))
    for row, wanted in zip(rows, reference.logprobs(body, rows), strict=True):
        found = answer["token_logprobs"][row]
        np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(answer["scores"][row], np.exp(wanted), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("prefix", "suffixes", "forwards"),
    [
        pytest.param(400, [60] * 300, 2, id="rows-over-the-budget"),
        pytest.param(16_500, [5, 900], 2, id="prefix-over-the-budget"),
        pytest.param(16_384, [5, 5], 2, id="prefix-fills-the-budget"),
    ],
)
def test_several_forwards_share_the_prefix(
    client: Client, reference: Reference, prefix: int, suffixes: list[int], forwards: int
) -> None:
    body = score_body(prefix, prefix, suffixes)
    with client.counting() as moved:
        answer = assert_paths_agree(client, body)
    assert moved["frontend.forwards"] == forwards
    assert moved["frontend.tokens_computed"] == prefix + sum(suffixes)
    last = len(suffixes) - 1
    (wanted,) = reference.logprobs(body, [last])
    np.testing.assert_allclose(answer["token_logprobs"][last], wanted, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("item_first", [False, True])
@pytest.mark.parametrize("query", ["", "問い: héllo 😀 ", " \n\t", "query"])
def test_texts_against_hugging_face(
    client: Client, reference: Reference, query: str, item_first: bool
) -> None:
    items = [text for text in TEXTS if query + text]
    body = {"query": query, "items": items, "label_token_ids": LABELS, "item_first": item_first}
    body["return_token_logprobs"] = True
    answer = assert_paths_agree(client, body)
    wanted = reference.logprobs(body, list(range(len(items))))
    np.testing.assert_allclose(answer["token_logprobs"], wanted, rtol=0, atol=TOLERANCE)


def test_a_text_and_its_token_ids_score_alike(client: Client, reference: Reference) -> None:
    query = "which one? "
    text = {"query": query, "items": TEXTS, "label_token_ids": LABELS}
    prompts = [reference.tokenizer.encode(query + item) for item in TEXTS]
    ids = {"query": [], "items": prompts, "label_token_ids": LABELS}
    assert_same(client.score(text), client.score(ids))


def test_a_lone_text_item_and_a_left_out_query(client: Client) -> None:
    for fields in ({"items": "one text"}, {"items": ["a text", "two"]}, {"items": [[7, 8]]}):
        body = {"label_token_ids": LABELS, "return_token_logprobs": True, **fields}
        assert_paths_agree(client, body)


def test_identical_items_score_identically(client: Client) -> None:
    item = random_ids(random.Random(3), 20)
    body = score_body(3, 50, []) | {"items": [item] * 25}
    answer = assert_paths_agree(client, body)
    spread = np.ptp(answer["token_logprobs"], axis=0)
    assert spread.max() <= TOLERANCE


def test_company_and_order_do_not_change_a_score(client: Client) -> None:
    body = score_body(4, 40, [3, 12, 7, 1, 30, 8])
    together = client.score(body)["token_logprobs"]
    backwards = client.score(body | {"items": body["items"][::-1]})["token_logprobs"]
    alone = [client.score(body | {"items": [item]})["token_logprobs"][0] for item in body["items"]]
    np.testing.assert_allclose(together, alone, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(together, backwards[::-1], rtol=0, atol=TOLERANCE)
