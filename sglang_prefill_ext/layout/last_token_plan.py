"""Plan the last layer's attention as dense calls, for the last token of every row. Pure numpy.

The last layer's output is read at the rows' last tokens only, so that layer needs one query a row.
The keys of a query are those of its own row and those of the group's prefix. Each prefix is a dense
call of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.layout.dense_plan import PrefixSpan
from sglang_prefill_ext.layout.tiling import CALL_PAIRS
from sglang_prefill_ext.layout.tokens import ForwardLayout


@dataclass(frozen=True, slots=True, eq=False)
class RowBatch:
    """Rows that attend to their own keys in one dense call: B rows of at most K tokens."""

    rows: NDArray[np.int64]
    """`[B]` row of each query, in the order of the layout."""
    key_index: NDArray[np.int64]
    """`[B, K]` flat indices of each row's tokens; padding repeats the row's last token."""
    lens: NDArray[np.int64]
    """`[B]` token count of each row, in descending order."""

    def additive_mask(self) -> NDArray[np.float32] | None:
        """Float32 `[B, 1, K]`, -inf at padding; None where no row is padded."""
        longest = self.key_index.shape[1]
        if self.lens[-1] == longest:
            return None
        padding = np.arange(longest) >= self.lens[:, None]
        return np.where(padding, np.float32(-np.inf), np.float32(0))[:, None]


def row_batches(layout: ForwardLayout) -> Iterator[RowBatch]:
    """Batches of rows of similar length, padded as long as that is cheaper than one more call.

    Each row is in exactly one of them.
    """
    lens = np.concatenate([group.suffix_lens for group in layout.groups]).astype(np.int64)
    starts = layout.row_starts
    if (lens == lens[0]).all():  # nothing to sort or to pad; always so for a single row
        yield RowBatch(np.arange(lens.size), starts[:, None] + np.arange(lens[0]), lens)
        return
    order = np.argsort(-lens, kind="stable")
    lens, starts = lens[order], starts[order]
    ends = np.cumsum(lens)
    first = 0
    while first < lens.size:
        longest = lens[first]
        before = ends[first] - longest
        padding = longest * np.arange(1, lens.size - first + 1) - (ends[first:] - before)
        last = first + int(np.searchsorted(padding, CALL_PAIRS, side="right"))
        some = slice(first, last)
        columns = np.minimum(np.arange(longest), lens[some, None] - 1)
        yield RowBatch(order[some], starts[some, None] + columns, lens[some])
        first = last


def row_spans(layout: ForwardLayout) -> Iterator[PrefixSpan]:
    """The prefix of each group that has one, and rows; the queries are row numbers."""
    row = 0
    for index, (group, start) in enumerate(
        zip(layout.groups, layout.group_starts.tolist(), strict=True)
    ):
        if group.num_rows and group.prefix_len:
            rows = slice(row, row + group.num_rows)
            yield PrefixSpan(rows, index, slice(start, start + group.fresh))
        row += group.num_rows
