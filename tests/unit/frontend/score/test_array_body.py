from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.score.score_body import ScoreBody

IDS = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=9)


def base64_of(*ids: int) -> str:
    return base64.b64encode(np.array(ids, "<i4").tobytes()).decode()


def rows_of(rows: list[list[int]]) -> dict[str, str]:
    flat = [each for row in rows for each in row]
    return {"values": base64_of(*flat), "counts": base64_of(*map(len, rows))}


def stock_body(body: bytes) -> bytes:
    return ScoreBody.of(body).stock(PrefillOnlyConfig())[0]


def as_lists(**fields: Any) -> Any:
    return json.loads(stock_body(json.dumps(fields).encode()))


@given(IDS, st.lists(IDS, max_size=9))
def test_arrays_become_lists_and_all_else_stays(query: list[int], items: list[list[int]]) -> None:
    other = {"label_token_ids": [1, 2], "unheard_of": {"values": 1}, "temperature": 0.5}
    found = as_lists(query={"values": base64_of(*query)}, items=rows_of(items), **other)
    assert found == {"query": query, "items": items, **other}
    assert as_lists(items=rows_of(items)) == {"items": items}
    assert as_lists(query=None, items=rows_of(items)) == {"query": None, "items": items}


@pytest.mark.parametrize(
    "body",
    [
        b'{"query": "values", "items": ["a"]}',
        b'{"query": "\\"values\\"", "items": [[1]]}',
        b'{"items": {"a": "values"}, "other": "\\"values\\""}',
        b'["values"]',
        b'{"values": ',
        b'{"values": "\xff"}',
        b"",
    ],
)
def test_what_has_no_arrays_is_left_to_sglang(body: bytes) -> None:
    assert stock_body(body) is body


GOOD = {"query": {"values": base64_of(1, 2)}, "items": rows_of([[3], [4, 5]])}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"query": [1, 2]}, "query, items: an array beside something else. Send both as arrays"),
        ({"query": "text"}, "query, items: an array beside something else"),
        ({"items": [[1]]}, "query, items: an array beside something else"),
        ({"items": ["text"]}, "query, items: an array beside something else"),
        ({"query": {"values": 5}}, r"query: Expected `bytes`, got `int` - at `\$.values`"),
        ({"query": {"values": "a?"}}, "query: Invalid base64.* Send values of int32 numbers"),
        ({"query": {"values": "abc="}}, "query.values: 2 bytes are no int32 numbers"),
        ({"query": {"values": "", "dtype": "int32"}}, "query: .*unknown field `dtype`"),
        ({"items": {"values": ""}}, "items: .*missing required field `counts`"),
        ({"items": rows_of([[1]]) | {"counts": "abc="}}, "items.counts: 2 bytes"),
        ({"items": rows_of([[1]]) | {"counts": base64_of(2)}}, "items.counts: .* add up to 2"),
        ({"items": rows_of([[1]]) | {"counts": base64_of(2, -1)}}, "items.counts: a count is -1"),
    ],
)
def test_wrong_arrays_are_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        as_lists(**GOOD | fields)
