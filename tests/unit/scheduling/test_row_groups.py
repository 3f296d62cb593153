from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.planner import plan_forward
from sglang_prefill_ext.scheduling.row_groups import RowGroups
from sglang_prefill_ext.scheduling.split import split_request
from tests.unit.scheduling.jobs import request
from tests.unit.wire.strategies import PlainRequest, plain_requests

PREFIX = [1, 2, 3]
ROWS = [[10, 11, 12, 13], [20, 21], [10, 11, 12, 14], [30, 31, 32, 33, 34]]
SEEN = [6, 0, 6, 7]
"""Rows 0 and 2 came before as far as they are alike, and row 3 up to its last token."""


def groups_of(
    plain: PlainRequest, seen: Sequence[int], budget: int = 100, number: int = 0, most: int = 100
) -> RowGroups:
    rows = plain.pack()
    pieces = split_request(rows, ForwardBudget(budget))
    first = sum(piece.span.num_rows for piece in pieces[:number])
    return RowGroups(rows, pieces[number], first, np.array(seen), most)


def test_only_the_first_rows_that_came_before_may_have_groups() -> None:
    rows = request(PREFIX, *ROWS)
    found = [groups_of(rows, SEEN, most=most).pieces for most in (0, 1, 2, 3, 4)]
    assert [[*map(list, each.values())] for each in found] == [
        [],
        [[0]],
        [[0, 2]],
        [[0, 2], [3]],
        [[0, 2], [3]],
    ]


def joined(cached: Sequence[int], spare: int = 0, most_held: int = 100) -> list[int]:
    """The last tokens of the rows that join, of the two prefixes in `ROWS`."""
    groups = groups_of(request(PREFIX, *ROWS), SEEN)
    groups.join(dict(zip(groups.pieces, cached, strict=True)), spare, most_held)
    return [int(each.suffix_ids[-1]) for own in groups.pieces.values() for each in own.values()]


def test_rows_that_begin_alike_have_one_prefix() -> None:
    groups = groups_of(request(PREFIX, *ROWS), SEEN)
    (alike, alone), keys = [[*own.values()] for own in groups.pieces.values()], groups.pieces
    assert [each.suffix_ids.tolist() for each in alike] == [[13], [14]]
    assert [each.suffix_ids.tolist() for each in alone] == [[34]]
    assert [key[1] for key in keys] == [own[0].prefix_ids.tobytes() for own in (alike, alone)]
    assert alike[1].prefix_ids.tolist() == [*PREFIX, 10, 11, 12]


@pytest.mark.parametrize(
    ("cached", "joining"),
    [
        # Rows 0 and 2 save the three tokens that they share, which pays for the prefix.
        ([0, 0], [13, 14]),
        ([3, 0], [13, 14, 34]),
        ([0, 3], [34, 13, 14]),
        ([0, 7], [34, 13, 14]),
        ([0, 2], [13, 14]),
    ],
)
def test_rows_join_as_long_as_they_add_no_tokens_in_all(
    cached: list[int], joining: list[int]
) -> None:
    assert sorted(joined(cached)) == sorted(joining)


def test_what_the_cache_saves_of_the_prefix_may_be_spent() -> None:
    assert joined([0, 0], spare=2) == [13, 14]
    assert sorted(joined([0, 0], spare=3)) == [13, 14, 34]


def test_no_more_tokens_are_held_than_a_forward_may_hold() -> None:
    assert sorted(joined([6, 7], most_held=13)) == [13, 14, 34]
    assert joined([6, 7], most_held=12) == [34]
    assert joined([6, 7], most_held=6) == [13, 14]
    assert joined([6, 7], most_held=5) == []


def test_rows_of_later_pieces_are_found() -> None:
    plain = request(PREFIX, *ROWS)
    found = [
        [each.suffix_ids.tolist() for own in groups.pieces.values() for each in own.values()]
        for groups in (groups_of(plain, SEEN, budget=9, number=number) for number in range(2))
    ]
    assert found == [[[13]], [[14], [34]]]


def test_nothing_is_left_where_all_rows_join_and_the_prefix_is_cached() -> None:
    plain = request(PREFIX, *ROWS[2:])
    groups = groups_of(plain, SEEN[2:])
    rest = groups.rest(cached=2, tail=0)
    assert rest is not None
    assert (rest.prefix_ids.tolist(), rest.span.num_rows) == (PREFIX, 0)
    assert groups.rest(cached=3, tail=0) is None
    assert groups.rest(cached=1, tail=1) is not None
    assert groups.rest(cached=2, tail=1) is None  # a last token that no row needs


@given(plain_requests(max_suffix=9), st.data())
def test_values_come_in_the_order_of_the_rows(plain: PlainRequest, data: st.DataObject) -> None:
    prefix = len(plain.prefix)
    seen = [
        data.draw(st.sampled_from([0, *range(prefix + 1, prefix + len(suffix))]))
        for suffix in plain.suffixes
    ]
    groups = groups_of(plain, seen)
    chosen = data.draw(st.sets(st.sampled_from([*groups.pieces]))) if groups.pieces else set()
    groups.pieces = {key: own for key, own in groups.pieces.items() if key in chosen}
    rest = groups.rest(cached=prefix, tail=0)
    pieces = [] if rest is None else [rest]
    pieces += [each for own in groups.pieces.values() for each in own.values()]
    plan = plan_forward(pieces)
    # What would be read at each place of the forward, in place of the value there.
    read = groups.share(plan.shares)
    assert plan.reads.label_ids[read.values].tolist() == [
        label for labels in plain.labels for label in labels
    ]
    assert read.num_tokens == plan.num_tokens
