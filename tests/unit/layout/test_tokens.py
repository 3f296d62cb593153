"""The layout of a forward is compared with counting token by token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.layout.tokens import ForwardLayout
from tests.unit.attention.strategies import group, layout, layouts


@settings(deadline=None)
@given(layouts())
@example(layout((0, 0, 3)))
def test_counts_every_token_once(forward: ForwardLayout) -> None:
    positions: list[int] = []
    group_starts: list[int] = []
    row_starts: list[int] = []
    read_positions: list[int] = []
    for span in forward.groups:
        group_starts.append(len(positions))
        positions.extend(range(span.held, span.prefix_len))
        for length in span.suffix_lens.tolist():
            row_starts.append(len(positions))
            positions.extend(range(span.prefix_len, span.prefix_len + length))
            read_positions.append(len(positions) - 1)
    assert forward.num_tokens == len(positions)
    assert forward.num_rows == len(row_starts)
    assert forward.positions().tolist() == positions
    assert forward.group_starts.tolist() == group_starts
    assert forward.row_starts.tolist() == row_starts
    assert forward.read_positions().tolist() == read_positions
    for array in (forward.positions(), forward.row_starts, forward.read_positions()):
        assert array.dtype == np.int64


@given(layouts(), st.data())
def test_reads_are_the_last_tokens_of_prefixes_and_rows(
    forward: ForwardLayout, data: st.DataObject
) -> None:
    groups, wanted, stop = [], list[int](), 0
    for span in forward.groups:
        lens = span.suffix_lens.tolist()
        prefix_reads = data.draw(st.integers(0, span.fresh))
        rows = data.draw(st.none() | st.tuples(*(st.integers(1, length) for length in lens)))
        read_lens = None if rows is None else np.array(rows, dtype=np.int32)
        groups.append(replace(span, prefix_reads=prefix_reads, read_lens=read_lens))
        reads = [prefix_reads, *([1] * len(lens) if rows is None else rows)]
        for length, count in zip([span.fresh, *lens], reads, strict=True):
            stop += length
            wanted += range(stop - count, stop)
    found = ForwardLayout(tuple(groups))
    assert found.read_positions().tolist() == wanted
    assert found.reads_row_ends == all(
        not group.prefix_reads and group.read_lens is None for group in groups
    )


def test_tokens_of_whole_prompts_see_them_to_their_ends() -> None:
    forward = replace(layout((0, 0, 2, 3), (0, 0, 1)), causal=False)
    assert forward.last_keys().tolist() == [1, 1, 4, 4, 4, 5]
    assert layout((0, 1, 2)).last_keys().tolist() == [0, 1, 2]


def test_whole_prompts_are_read_at_their_first_tokens() -> None:
    forward = replace(layout((0, 0, 2, 3), (0, 0, 1)), causal=False)
    assert forward.read_positions().tolist() == forward.last_layer_queries().tolist() == [0, 2, 5]


@pytest.mark.parametrize("prefix", [(1, 0), (0, 1)])
def test_whole_prompts_share_no_prefix(prefix: tuple[int, int]) -> None:
    with pytest.raises(PackingError, match="whole prompt"):
        ForwardLayout((group(0, 0, 2), group(*prefix, 2)), causal=False)


def test_a_row_is_numbered_as_if_sent_alone() -> None:
    forward = layout((3, 2, 2, 1), (0, 0, 3))
    assert forward.positions().tolist() == [3, 4, 5, 6, 5, 0, 1, 2]
    assert forward.read_positions().tolist() == [3, 4, 7]


def test_a_prefix_chunk_has_nothing_to_read() -> None:
    forward = layout((4, 3))
    assert forward.num_rows == 0
    assert forward.read_positions().shape == (0,)
    assert forward.positions().tolist() == [4, 5, 6]


def test_counts_of_a_group() -> None:
    span = group(4, 3, 1, 2)
    assert (span.prefix_len, span.num_rows, span.num_tokens) == (7, 2, 6)
