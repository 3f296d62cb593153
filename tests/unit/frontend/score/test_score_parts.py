from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.config import PrefixCaching
from sglang_prefill_ext.frontend.score.score_parts import ScorePart, parts_of
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.prefix_policy import PrefixPolicy
from sglang_prefill_ext.wire.read import Labels

QUERY = [7] * 20


def rows_of(items: list[list[int]], query: list[int] = QUERY, **fields: Any) -> PackedRows:
    """One label for each item: its number."""
    tokens = int_array(query + [token for item in items for token in item])
    lens = int_array([len(item) for item in items])
    labels = Labels(int_array(range(len(items))), int_array([1] * len(items)))
    return PackedRows(tokens, len(query), lens, fields.pop("read", labels), **fields)


def prompts(rows: PackedRows) -> list[list[int]]:
    prefix, own = np.split(rows.tokens, [rows.prefix_len])
    suffixes = np.split(own, np.cumsum(rows.suffix_lens)[:-1])
    return [[*prefix.tolist(), *suffix.tolist()] for suffix in suffixes]


def repeated() -> PrefixPolicy:
    return PrefixPolicy(PrefixCaching.REPEATED, page_tokens=1)


def told(parts: list[ScorePart]) -> list[tuple[list[int], int, bool]]:
    return [(part.numbers.tolist(), part.rows.prefix_len, part.repeated) for part in parts]


def test_long_items_that_came_before_are_asked_for_apart() -> None:
    policy = repeated()
    items = [[number] * 200 for number in (1, 2, 3)]
    first = rows_of([[*item, 9] for item in items])
    assert told(parts_of(first, policy)) == [([0, 1, 2], 20, False)]
    second = rows_of([[*items[2], 8], [4] * 200, [*items[0], 8]])
    assert sorted(told(parts_of(second, policy))) == [
        ([0], 220, True),
        ([1], 20, False),
        ([2], 220, True),
    ]
    elsewhere = rows_of([[*item, 8] for item in items], query=[6] * 20)
    assert told(parts_of(elsewhere, policy)) == [([0, 1, 2], 20, False)]


@pytest.mark.parametrize(
    "fields",
    [{"read_lens": int_array([2, 1])}, {"overrides": np.zeros((1, 4), np.float32)}],
    ids=["several reads", "embeddings"],
)
def test_some_rows_stay_together(fields: dict[str, Any]) -> None:
    policy = repeated()
    rows = rows_of([[1] * 200, [2] * 200], read=Labels(int_array([1])), **fields)
    for _ in range(2):
        ((numbers, same, _),) = parts_of(rows, policy)
        assert numbers.tolist() == [0, 1]
        assert same is rows


@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from([1, 2, 3]), st.integers(1, 300)), min_size=1, max_size=5
        ),
        min_size=1,
        max_size=4,
    )
)
def test_every_row_is_in_one_part_with_its_labels(calls: list[list[tuple[int, int]]]) -> None:
    policy = repeated()
    for call in calls:
        rows = rows_of([[token] * length + [9] for token, length in call])
        whole, found = prompts(rows), {}
        for part in parts_of(rows, policy):
            own = prompts(part.rows)
            labels = part.rows.read.ids.tolist()
            assert labels == part.numbers.tolist()
            found.update(zip(part.numbers.tolist(), own, strict=True))
        assert [found[number] for number in range(len(whole))] == whole
