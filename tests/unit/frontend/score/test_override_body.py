from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import RequestError, TooManyItemsError
from sglang_prefill_ext.frontend.score.score_body import stock_decision_body, stock_score_body

MATRICES = st.sampled_from(["float16", "float32"]).flatmap(
    lambda dtype: np_st.arrays(dtype, np_st.array_shapes(min_dims=2, max_dims=2, max_side=4))
)
CONFIG = PrefillOnlyConfig(max_items=5)
ONE = np.array([[0.5, -1.0]], np.float16)


def form(array: Any) -> dict[str, Any]:
    data = base64.b64encode(array.tobytes()).decode()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": data}


def same(found: Any, wanted: Any) -> bool:
    return found.dtype == wanted.dtype and found.tobytes() == wanted.tobytes()


@given(MATRICES, st.lists(st.none() | MATRICES, min_size=1, max_size=3))
def test_arrays_are_taken_out_of_the_body(query: Any, items: list[Any]) -> None:
    left = {
        "query": [1, 2],
        "items": [[3]] * len(items),
        "embed_override_token_id": 2,
        "unknown": None,
    }
    body = left | {
        "query_embed_overrides": form(query),
        "item_embed_overrides": [None if each is None else form(each) for each in items],
    }
    read = stock_score_body(json.dumps(body).encode(), CONFIG)
    rest, found = read
    assert found is not None
    arguments = found.arguments(len(items))
    assert same(arguments.pop("query_embed_overrides"), query)
    if any(each is not None for each in items):
        taken = arguments.pop("item_embed_overrides")
        assert [each is None for each in taken] == [each is None for each in items]
        assert all(same(a, b) for a, b in zip(taken, items, strict=True) if b is not None)
        assert json.loads(rest) == left
    else:
        assert json.loads(rest) == left | {"item_embed_overrides": items}
    assert arguments == {}


def test_one_array_holds_those_of_all_items() -> None:
    whole = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    left = {"query_embed_overrides": [[0.5, 0.5]], "items": ["a", "b", "c"]}
    body = {"item_embed_overrides": form(whole)} | left
    read = stock_score_body(json.dumps(body).encode(), CONFIG)
    assert json.loads(read[0]) == left
    (taken,) = read[1].arguments(3).values()
    assert isinstance(taken, list)
    assert all(same(a, b) for a, b in zip(taken, whole, strict=True))


@pytest.mark.parametrize(
    "body",
    [
        b'{"query": "q"}',
        b'{"query": "_embed_overrides"}',
        b'{"query_embed_overrides": [[0.5]], "item_embed_overrides": [null, [[0.5]]]}',
        b'["_embed_overrides"]',
        b'"_embed_overrides',
        b"",
    ],
)
def test_other_bodies_are_left_as_they_are(body: bytes) -> None:
    assert stock_score_body(body, CONFIG) == (body, None)
    assert stock_decision_body(body, CONFIG) == (body, None)


def test_embeddings_of_a_decision_are_for_every_question() -> None:
    body = {"input": "i", "input_embed_overrides": form(ONE), "embed_override_token_id": 7}
    read = stock_decision_body(json.dumps(body).encode(), CONFIG)
    assert json.loads(read[0]) == {"input": "i"}
    arguments = read[1].arguments(2)
    assert arguments.keys() == {"embed_override_token_id", "item_embed_overrides"}
    assert arguments["embed_override_token_id"] == 7
    assert all(same(each, ONE) for each in arguments["item_embed_overrides"])
    assert len(arguments["item_embed_overrides"]) == 2


@pytest.mark.parametrize("token", [None, "5", 5.0, True])
def test_a_decision_names_its_placeholder(token: Any) -> None:
    body = {"input_embed_overrides": form(ONE), "embed_override_token_id": token}
    with pytest.raises(RequestError, match="embed_override_token_id: "):
        stock_decision_body(json.dumps(body).encode(), CONFIG)


GOOD = form(ONE)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"data": GOOD["data"]}, "not an object of dtype, shape and data"),
        (GOOD | {"more": 1}, "not an object of dtype, shape and data"),
        (GOOD | {"dtype": "float64"}, r"\.dtype: 'float64' is none of float16, float32"),
        (GOOD | {"dtype": [1]}, r"\.dtype: \[1\]"),
        (GOOD | {"shape": [2]}, r"\.shape: \[2\] is not a list of 2 sizes"),
        (GOOD | {"shape": [-1, -2]}, r"\.shape: \[-1, -2\]"),
        (GOOD | {"shape": [1.0, 2]}, r"\.shape: \[1\.0, 2\]"),
        (GOOD | {"shape": "12"}, r"\.shape: '12'"),
        (GOOD | {"shape": 2}, r"\.shape: 2 is not"),
        (GOOD | {"shape": [0, 2**63], "data": ""}, r"\.shape: \[0, 9223372036854775808\]"),
        (GOOD | {"shape": [3, 2]}, r"\.data: 4 bytes for the shape \[3, 2\] of float16.* 12\."),
        (GOOD | {"data": "****"}, r"\.data: not base64"),
        (GOOD | {"data": "é"}, r"\.data: not base64"),
        (GOOD | {"data": 5}, r"\.data: not base64"),
    ],
)
def test_malformed_arrays_are_refused_by_field(wrong: Any, said: str) -> None:
    for field, value in (
        ("query_embed_overrides", wrong),
        (r"item_embed_overrides\[1\]", [None, wrong]),
    ):
        body = json.dumps({field.partition("\\")[0]: value, "items": [[1], [2]]}).encode()
        with pytest.raises(RequestError, match=field + (said if said[0] == "\\" else f": {said}")):
            stock_score_body(body, CONFIG)


@pytest.mark.parametrize("shape", [[2**20, 0, 2], [2**20, 2, 0], [2**20, 0, 0]])
def test_no_data_holds_no_items(shape: list[int]) -> None:
    """Otherwise a body of a few bytes could ask for any number of arrays."""
    body = {"item_embed_overrides": {"dtype": "float16", "shape": shape, "data": ""}}
    with pytest.raises(RequestError, match=r"item_embed_overrides\.shape: .* may be 0"):
        stock_score_body(json.dumps(body).encode(), CONFIG)


@pytest.mark.parametrize("items", [None, 5, [], "a", [[1]] * 3])
@pytest.mark.parametrize("form_of", [form, lambda array: list(map(form, array))])
def test_embeddings_of_items_that_are_not_there_are_refused(items: Any, form_of: Any) -> None:
    body = {"item_embed_overrides": form_of(np.zeros((2, 1, 2), np.float32)), "items": items}
    with pytest.raises(RequestError, match=r"item_embed_overrides: 2 for \d items"):
        stock_score_body(json.dumps(body).encode(), CONFIG)


@pytest.mark.parametrize("each", [GOOD, {"dtype": "no such type"}])
def test_too_many_items_are_refused_before_their_embeddings_are_read(each: Any) -> None:
    body = {"item_embed_overrides": [each] * 6, "items": [[1]] * 6}
    with pytest.raises(TooManyItemsError, match="6 items exceed the limit of 5"):
        stock_score_body(json.dumps(body).encode(), CONFIG)


def test_a_query_may_have_no_embeddings() -> None:
    read = stock_score_body(json.dumps({"query_embed_overrides": form(ONE[:0])}).encode(), CONFIG)
    assert read[1].found["query_embed_overrides"].shape == (0, 2)
