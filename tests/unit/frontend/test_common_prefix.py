from __future__ import annotations

from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.frontend.pack import common_prefix_len, shared_prefix_len

# Few different tokens, so that rows often agree for a while.
TOKEN_LISTS = st.lists(st.integers(0, 2), max_size=6)
ROWS = st.lists(TOKEN_LISTS, max_size=5)


def _common(rows: list[list[int]]) -> int:
    columns = zip(*rows, strict=False)
    return len(list(takewhile(lambda column: len(set(column)) == 1, columns)))


@given(ROWS, TOKEN_LISTS)
def test_common_prefix_equals_brute_force(rows: list[list[int]], shared: list[int]) -> None:
    rows = [shared + row for row in rows]
    assert common_prefix_len(rows) == _common(rows)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=2, max_size=5))
def test_shared_prefix_leaves_a_token_in_every_row(rows: list[list[int]]) -> None:
    assert shared_prefix_len(rows) == min(_common(rows), min(map(len, rows)) - 1)


@given(ROWS, st.lists(st.integers(0, 2), min_size=1, max_size=4))
def test_known_tokens_may_be_left_out_of_the_rows(rows: list[list[int]], front: list[int]) -> None:
    whole = [front + row for row in rows]
    assert shared_prefix_len(rows, known=len(front)) == shared_prefix_len(whole)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], 0),
        ([[1, 2, 3]], 0),
        ([[1, 2, 3], [1, 2, 3]], 2),
        ([[1, 2, 3], [1, 2, 3, 4]], 2),
        ([[1], [1, 2], [1, 2, 3]], 0),
        ([[1, 2], [1, 3], [2, 2]], 0),
        ([[5, 1], [5, 2]], 1),
        ([[], [1]], 0),
    ],
    ids=[
        "none",
        "one row",
        "identical",
        "prefix of another",
        "nested",
        "early split",
        "split",
        "empty",
    ],
)
def test_shared_prefix_of_special_rows(rows: list[list[int]], expected: int) -> None:
    assert shared_prefix_len(rows) == expected


def test_an_empty_row_takes_its_token_from_the_known_prefix() -> None:
    assert shared_prefix_len([[], [7]], known=3) == 2
