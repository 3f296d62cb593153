"""The last layer's calls have every row once, its own keys, the right prefix, little padding."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from sglang_prefill_ext.layout.last_token_plan import row_batches, row_spans
from sglang_prefill_ext.layout.tiling import CALL_PAIRS
from sglang_prefill_ext.layout.tokens import ForwardLayout
from tests.unit.attention.strategies import layout, layouts


@given(layouts().filter(lambda forward: forward.num_rows > 0))
def test_every_row_meets_its_own_keys_once_and_its_prefix_once(forward: ForwardLayout) -> None:
    batches = list(row_batches(forward))
    rows = np.concatenate([batch.rows for batch in batches])
    assert sorted(rows.tolist()) == list(range(forward.num_rows))
    starts, stops = forward.row_starts, forward.read_positions() + 1
    for batch in batches:
        mask = batch.additive_mask()
        seen = np.ones_like(batch.key_index, bool) if mask is None else mask[:, 0] == 0
        assert mask is None or np.isneginf(mask[:, 0][~seen]).all()
        for row, keys, visible in zip(batch.rows, batch.key_index, seen, strict=True):
            assert keys[visible].tolist() == list(range(starts[row], stops[row]))
            assert {*keys[~visible].tolist()} <= {stops[row] - 1}
        assert np.sum(~seen) <= CALL_PAIRS

    group_of_row = np.repeat(np.arange(len(forward.groups)), [g.num_rows for g in forward.groups])
    with_prefix = {}
    for span in row_spans(forward):
        start = forward.group_starts[span.group]
        assert span.queries.start < span.queries.stop
        assert span.fresh == slice(start, start + forward.groups[span.group].fresh)
        with_prefix |= dict.fromkeys(range(*span.queries.indices(forward.num_rows)), span.group)
    expected = {
        row: group
        for row, group in enumerate(group_of_row.tolist())
        if forward.groups[group].prefix_len
    }
    assert with_prefix == expected


def test_rows_of_one_length_are_one_call_without_a_mask() -> None:
    (batch,) = row_batches(layout((0, 60, *[2] * 50)))
    assert batch.additive_mask() is None


def test_long_rows_are_not_padded_to() -> None:
    batches = row_batches(layout((0, 1, 2, 30_000, 15_000, 2)))
    assert [batch.rows.tolist() for batch in batches] == [[1], [2], [0, 3]]
