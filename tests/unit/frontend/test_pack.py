from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.pack import pack_token_ids
from sglang_prefill_ext.wire.arrays import FlatRows, int_array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Labels
from tests.unit.wire.strategies import labels_by_read

VOCAB = 40
LABELS = Labels(int_array([3, 4]))

# Few different tokens, so that items often share a prefix with each other.
TOKEN_LISTS = st.lists(st.integers(0, 2), max_size=5)
ITEMS = st.lists(TOKEN_LISTS, min_size=1, max_size=5)


def _rebuilt(rows: PackedRows) -> list[list[int]]:
    prefix, rest = rows.tokens[: rows.prefix_len].tolist(), rows.tokens[rows.prefix_len :].tolist()
    ends = rows.suffix_lens.cumsum().tolist()
    return [prefix + rest[a:b] for a, b in zip([0, *ends], ends, strict=False)]


@given(TOKEN_LISTS, ITEMS, st.booleans())
def test_every_row_can_be_rebuilt(query: list[int], items: list[list[int]], first: bool) -> None:
    expected = [item + query if first else query + item for item in items]
    if not all(expected):
        with pytest.raises(RequestError, match="empty"):
            pack_token_ids(query, items, first, LABELS, VOCAB)
        return
    rows = pack_token_ids(query, items, first, LABELS, VOCAB)
    assert _rebuilt(rows) == expected
    assert int(rows.suffix_lens.min()) >= 1
    assert rows.read.ids.tolist() == [3, 4]


@given(TOKEN_LISTS, ITEMS)
def test_both_ways_of_packing_find_the_same_prefix(
    query: list[int], items: list[list[int]]
) -> None:
    query = [*query, 1]
    from_ids = pack_token_ids(query, items, False, LABELS, VOCAB)
    from_rows = pack_token_ids([], [query + item for item in items], False, LABELS, VOCAB)
    assert from_ids.prefix_len == from_rows.prefix_len
    assert from_ids.tokens.tolist() == from_rows.tokens.tolist()
    assert from_ids.suffix_lens.tolist() == from_rows.suffix_lens.tolist()


@pytest.mark.parametrize(
    ("query", "items", "item_first", "prefix"),
    [
        ([5, 6], [[1], [2]], False, 2),
        ([5, 6], [[1, 2], [1, 3]], False, 3),
        ([5, 6], [[1], [1]], False, 2),
        ([5, 6], [[], [1]], False, 1),
        ([], [[1, 2], [1, 3]], False, 1),
        ([5, 6], [[1]], False, 0),
        ([5, 6], [[1, 2], [1, 3]], True, 1),
        ([5], [[], []], True, 0),
    ],
    ids=[
        "the query",
        "query and what the items share",
        "identical items",
        "an empty item",
        "no query",
        "one item",
        "item first",
        "only the query",
    ],
)
def test_the_prefix_of_special_calls(
    query: list[int], items: list[list[int]], item_first: bool, prefix: int
) -> None:
    assert pack_token_ids(query, items, item_first, LABELS, VOCAB).prefix_len == prefix


def test_labels_of_each_item_pass_through() -> None:
    labels = Labels(int_array([7, 8, 9]), int_array([1, 2]))
    rows = pack_token_ids([1], [[2], [3]], False, labels, VOCAB)
    assert labels_by_read(rows) == [[7], [8, 9]]


@pytest.mark.parametrize("item_first", [False, True])
@pytest.mark.parametrize("token", [-1, VOCAB, 2**31, 2**63, -(2**70)])
def test_an_id_outside_the_vocabulary_is_refused_by_field_and_value(
    token: int, item_first: bool
) -> None:
    for query, items in (
        ([1, token], [[3], [5]]),
        ([1], [[3, token], [5]]),
        ([1], [[3], [5, token]]),
        ([1], [[token, 3], [token, 5]]),  # a part of the prefix
    ):
        with pytest.raises(RequestError, match=rf"`query, items`.* {token};.* 0 to {VOCAB - 1}"):
            pack_token_ids(query, items, item_first, LABELS, VOCAB)


@pytest.mark.parametrize("item_first", [False, True])
@pytest.mark.parametrize("token", [-1, VOCAB, 2**31 - 1])
@pytest.mark.parametrize(("field", "at"), [("query", 1), ("items", 3)])
def test_an_id_of_an_array_outside_the_vocabulary_is_refused_by_its_own_field(
    field: str, at: int, token: int, item_first: bool
) -> None:
    ids = int_array([1, 2, 3, 4, 5])
    ids[at] = token
    query, items = ids[:2], FlatRows(ids[2:], int_array([1, 2]))
    with pytest.raises(RequestError, match=rf"`{field}`.* {token};.* 0 to {VOCAB - 1}"):
        pack_token_ids(query, items, item_first, LABELS, VOCAB)


def test_an_empty_row_is_named_before_an_id_of_another() -> None:
    with pytest.raises(RequestError, match=r"empty.*`items`"):
        pack_token_ids([], [[VOCAB], []], False, LABELS, VOCAB)


@pytest.mark.parametrize("item_first", [False, True])
@pytest.mark.parametrize("element", [1.5, 7.0, "7", None])
def test_an_element_that_is_no_integer_is_a_type_error(element: object, item_first: bool) -> None:
    items = [[3, 4], [element]]
    with pytest.raises(TypeError):
        pack_token_ids([1], items, item_first, LABELS, VOCAB)  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [[[]], [[1], []]])
def test_a_row_without_tokens_is_refused(rows: list[list[int]]) -> None:
    with pytest.raises(RequestError, match="empty"):
        pack_token_ids([], rows, False, LABELS, VOCAB)


@pytest.mark.parametrize("first_token", [0, 7], ids=["items differ", "items begin alike"])
@pytest.mark.parametrize("as_lists", [False, True])
def test_a_query_behind_items_takes_few_bytes_a_pair(first_token: int, as_lists: bool) -> None:
    count, length = 1000, 1000
    query: Any = np.arange(length, dtype=np.int32)
    rows = np.arange(2 * count, dtype=np.int32).reshape(count, 2)
    if first_token:
        rows[:, 0] = first_token
    items: Any = FlatRows(rows.ravel(), np.full(count, 2, dtype=np.int32))
    if as_lists:
        query, items = query.tolist(), rows.tolist()
    tracemalloc.start()
    try:
        packed = pack_token_ids(query, items, True, LABELS, 2 * count)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert packed.num_prompt_tokens == count * (length + 2)
    # The rows, and the packed tokens if a common prefix is taken out of them.
    assert peak < (13 if first_token else 5) * count * length
