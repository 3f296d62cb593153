"""Token ids as base64 arrays over HTTP: the answers are those of lists, on every path."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_prefill_ext.client import Options, PrefillClient
from tests.integration.support.client import LABELS, Client, Json, score_body
from tests.integration.support.override_bodies import PLACEHOLDER, embeds
from tests.integration.support.parity import TOLERANCE, assert_same_answer

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

BODY = score_body(3, 40, [3, 12, 1, 30])


def base64_of(ids: Any) -> str:
    return base64.b64encode(np.array(ids, "<i4").tobytes()).decode()


def with_arrays(body: Json) -> Json:
    """The same request with its token ids as arrays."""
    flat = [each for item in body["items"] for each in item]
    counts = base64_of([len(item) for item in body["items"]])
    items = {"values": base64_of(flat), "counts": counts}
    return body | {"query": {"values": base64_of(body["query"])}, "items": items}


def assert_answers_agree(client: Client, body: Json) -> None:
    """As arrays on the packed and on the stock path, and as lists on the packed one."""
    with client.counting() as moved:
        packed, stock = (client.score(with_arrays(body), stock=stock) for stock in (False, True))
    assert (moved["frontend.requests.packed"], moved["frontend.fallbacks.opted_out"]) == (1, 1)
    assert_same_answer(packed, stock)
    assert_same_answer(packed, client.score(body))


@settings(max_examples=20)
@given(
    st.integers(0, 2**16),
    st.integers(0, 60),
    st.lists(st.integers(0, 12), min_size=1, max_size=12),
    st.booleans(),
)
def test_random_requests_are_answered_as_lists_are(
    client: Client, seed: int, prefix: int, suffixes: list[int], item_first: bool
) -> None:
    body = score_body(seed, max(prefix, 0 in suffixes), suffixes, item_first=item_first)
    assert_answers_agree(client, body)


def test_labels_of_each_item_and_softmax(client: Client) -> None:
    labels = [LABELS, LABELS[:2], LABELS[1:], LABELS[3:]]
    fields = {"label_token_ids": labels, "apply_softmax": True, "temperature": 0.5}
    assert_answers_agree(client, BODY | fields)


def test_what_is_not_packed_is_answered_by_the_stock_path(client: Client) -> None:
    with client.counting() as moved:
        empty = client.score(with_arrays(BODY | {"items": []}))
        refused = client.post("/v1/score", with_arrays(BODY | {"temperature": 3.0}))
        unknown = client.score(with_arrays(BODY) | {"no_such_field": 1})
        explained = client.post("/prefill_only/explain", with_arrays(BODY))
    assert empty["scores"] == []
    assert (refused.status_code, "temperature" in refused.json()["message"]) == (400, True)
    assert_same_answer(unknown, client.score(BODY))
    assert explained.json()["path"] == "packed"
    assert moved["frontend.fallbacks.no_items"] == 1
    assert moved["frontend.fallbacks.unusual_input"] == 1


def test_embeddings_come_along(client: Client) -> None:
    body = BODY | {"items": [[5, PLACEHOLDER], [6, PLACEHOLDER]]}
    body |= {"embed_override_token_id": PLACEHOLDER}
    body |= {"item_embed_overrides": embeds(1, 2, 1).tolist()}
    assert_same_answer(client.score(with_arrays(body)), client.score(body))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"query": {"values": "abc="}}, "query.values: 2 bytes are no int32 numbers"),
        ({"query": {"values": "?"}}, "query: Invalid base64"),
        ({"query": [1, 2]}, "query, items: an array beside something else"),
        ({"items": {"values": ""}}, "items: Object missing required field `counts`"),
        ({"items": {"values": "", "counts": base64_of([1])}}, "items.counts: the counts add up"),
        ({"query": {"values": base64_of([8_000])}}, "`query`) contains the out-of-vocabulary"),
        ({"query": {"values": ""}, "items": {"values": "", "counts": base64_of([0])}}, "is empty"),
    ],
)
def test_wrong_arrays_are_refused_by_name(client: Client, fields: Json, words: str) -> None:
    with client.counting() as moved:
        response = client.post("/v1/score", with_arrays(BODY) | fields)
    assert (response.status_code, words in response.json()["message"]) == (400, True), response.text
    assert moved["frontend.requests.refused"] == 1


def test_the_python_client_sends_arrays_once_it_has_had_an_answer(client: Client) -> None:
    items = [np.array(item) for item in BODY["items"]]
    with PrefillClient(str(client.http.base_url)) as asking:
        found = [asking.score(np.array(BODY["query"]), items, LABELS) for _ in range(2)]
        stock = asking.score(BODY["query"], items, LABELS, options=Options(stock=True))
        assert asking._carrier._arrays  # type: ignore[union-attr]
    for one in (found[1], stock):
        np.testing.assert_allclose(one.scores, found[0].scores, rtol=0, atol=TOLERANCE)
        assert one.prompt_tokens == found[0].prompt_tokens
