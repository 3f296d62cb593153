"""Divide one request into pieces, each small enough for a forward; pure data."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.oneshot.budget import ForwardBudget
from sglang_prefill_ext.oneshot.layout import GroupSpan
from sglang_prefill_ext.wire.packed import Int32Array, PackedRows

PrefixKey: TypeAlias = tuple[str, bytes]
"""Namespace and token ids of a whole prefix."""

_Cut: TypeAlias = tuple[int, int, int, int]
"""``(held, fresh, first row, last row)`` of a piece; the last row is not part of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """What one forward computes of one request.

    Attributes:
        span: where the piece lies as long as it does not share its prefix.
        prefix_ids: the fresh prefix; int32 ``[span.fresh]``.
        suffix_ids: the rows' tokens after the prefix, row by row; int32.
        label_ids: labels of the rows, row by row; int32; empty where vectors are read.
        label_lens: values a row; int32 ``[num_rows]``.
        normalised: what to read, see `PackedRows`.
        hold: keep the K/V of the prefix, the request's next piece needs it.
        prefix_key: pieces with equal keys compute the same prefix and can share it; None where
            only a part of the prefix is fresh.
    """

    span: GroupSpan
    prefix_ids: Int32Array
    suffix_ids: Int32Array
    label_ids: Int32Array
    label_lens: Int32Array
    normalised: bool
    hold: bool
    prefix_key: PrefixKey | None

    @property
    def num_tokens(self) -> int:
        return len(self.prefix_ids) + len(self.suffix_ids)

    @property
    def num_rows(self) -> int:
        return len(self.label_lens)

    @property
    def num_values(self) -> int:
        """Values that are read of its rows."""
        return int(self.label_lens.sum())

    @property
    def uses_cache(self) -> bool:
        """Whether the prefix cache may stand in for a part of the prefix."""
        return self.prefix_key is not None and len(self.prefix_ids) > 0 and self.num_rows > 0

    def behind(self, cached: int) -> Piece:
        """The same piece where the first `cached` tokens of its prefix need not be computed."""
        span = GroupSpan(cached, self.span.fresh - cached, self.span.suffix_lens)
        return replace(self, span=span, prefix_ids=self.prefix_ids[cached:])


def split_request(rows: PackedRows, budget: ForwardBudget, namespace: str = "") -> list[Piece]:
    """Divide a request into as few pieces as the budget allows; one if it fits.

    Every token is computed exactly once. The prefix may be cut anywhere, rows stay whole and in
    order; among all divisions into equally few pieces this one has the smallest largest piece.

    Args:
        namespace: requests of different namespaces never share a prefix.

    Raises:
        PackingError: a suffix is longer than the budget; such a request must not come here.
    """
    longest = int(rows.suffix_lens.max())
    if longest > budget.longest_row:
        raise PackingError(
            f"a suffix of {longest} tokens exceeds the budget of {budget.longest_row} of a forward"
        )
    # Where each row's suffix begins in the flat tokens, and where the last one ends.
    starts = rows.prefix_len + np.concatenate(([0], np.cumsum(rows.suffix_lens, dtype=np.int64)))
    if budget.fits(len(rows.tokens), rows.num_rows):
        cuts = [(0, rows.prefix_len, 0, rows.num_rows)]
    else:
        cuts = _balanced_cuts(rows, starts, longest, budget)
    return [
        _piece(rows, starts, cut, namespace, is_last=number == len(cuts))
        for number, cut in enumerate(cuts, start=1)
    ]


def _balanced_cuts(
    rows: PackedRows, starts: NDArray[np.int64], longest: int, budget: ForwardBudget
) -> list[_Cut]:
    # Filling one piece after the other gives the fewest for any limit on their tokens, and
    # fewer the higher the limit: the lowest limit that needs no more pieces is found by bisection.
    fewest = len(_greedy_cuts(rows, starts, budget.max_tokens, budget))
    lowest = max(longest, -(-len(rows.tokens) // fewest))
    limit = lowest + bisect_left(
        range(lowest, budget.max_tokens),
        True,
        key=lambda tokens: len(_greedy_cuts(rows, starts, tokens, budget)) <= fewest,
    )
    return _greedy_cuts(rows, starts, limit, budget)


def _greedy_cuts(
    rows: PackedRows, starts: NDArray[np.int64], max_tokens: int, budget: ForwardBudget
) -> list[_Cut]:
    """Fill piece after piece up to `max_tokens` and the budget's memory."""
    cuts: list[_Cut] = []
    held, prefix = 0, rows.prefix_len
    chunk = min(max_tokens, budget.longest_chunk)
    while prefix - held > chunk:
        cuts.append((held, chunk, 0, 0))
        held += chunk
    row_bytes = budget.bytes_per_token * starts + budget.bytes_per_row * np.arange(len(starts))
    first = 0
    while first < rows.num_rows:
        fresh = prefix - held
        tokens_end = starts[first] + max_tokens - fresh
        bytes_end = row_bytes[first] + budget.max_bytes - budget.num_bytes(fresh, 0)
        last = min(
            int(starts.searchsorted(tokens_end, side="right")),
            int(row_bytes.searchsorted(bytes_end, side="right")),
        )
        cuts.append((held, fresh, first, last - 1))
        held, first = prefix, last - 1
    return cuts


def _piece(
    rows: PackedRows, starts: NDArray[np.int64], cut: _Cut, namespace: str, *, is_last: bool
) -> Piece:
    held, fresh, first, last = cut
    prefix_ids = rows.tokens[held : held + fresh]
    label_ids, label_lens = rows.labels_of(first, last)
    return Piece(
        span=GroupSpan(held=held, fresh=fresh, suffix_lens=rows.suffix_lens[first:last]),
        prefix_ids=prefix_ids,
        suffix_ids=rows.tokens[starts[first] : starts[last]],
        label_ids=label_ids,
        label_lens=label_lens,
        normalised=rows.normalised,
        hold=rows.prefix_len > 0 and not is_last,
        prefix_key=(namespace, prefix_ids.tobytes()) if fresh == rows.prefix_len else None,
    )
