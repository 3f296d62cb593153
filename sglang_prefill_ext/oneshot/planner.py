"""Divide a packed request into forwards within the token budget; pure data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.oneshot.layout import ForwardLayout, GroupSpan
from sglang_prefill_ext.wire.packed import Int32Array, PackedRows


@dataclass(frozen=True, slots=True)
class ForwardPlan:
    """What one forward computes and reads.

    Attributes:
        layout: where prefix and rows lie.
        token_ids: int32 ``[layout.num_tokens]``.
        label_ids: labels of the rows of this forward, row by row; int32.
        label_lens: labels a row; int32 ``[layout.num_rows]``.
        hold_prefix: keep the K/V of the prefix, a later forward of the request needs it.
        normalised: what to read, see `PackedRows`.
    """

    layout: ForwardLayout
    token_ids: Int32Array
    label_ids: Int32Array
    label_lens: Int32Array
    hold_prefix: bool
    normalised: bool = True


def plan_forwards(rows: PackedRows, max_tokens: int) -> list[ForwardPlan]:
    """Plan the forwards of a request; every token is computed exactly once.

    A prefix over the budget is computed in chunks first. Rows stay whole and in order, and
    as many as fit share a forward; the prefix's K/V is held from one forward to the next.

    Args:
        max_tokens: budget of one forward, in tokens, >= 1.

    Raises:
        PackingError: a suffix is longer than the budget; such a request must not come here.
    """
    longest = int(rows.suffix_lens.max())
    if longest > max_tokens:
        raise PackingError(f"a suffix of {longest} tokens exceeds the budget of {max_tokens}")
    # Where each row's suffix begins in the flat tokens, and where the last one ends.
    starts = rows.prefix_len + np.concatenate(([0], np.cumsum(rows.suffix_lens, dtype=np.int64)))
    steps = list(_steps(rows, starts, max_tokens))
    return [_plan(rows, starts, *step, hold=step is not steps[-1]) for step in steps]


def _steps(
    rows: PackedRows, starts: NDArray[np.int64], max_tokens: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yield ``(held, fresh, first row, last row)`` of each forward."""
    held, prefix = 0, rows.prefix_len
    while prefix - held > max_tokens:
        yield held, max_tokens, 0, 0
        held += max_tokens
    first = 0
    while first < rows.num_rows:
        fresh = prefix - held
        last = int(np.searchsorted(starts, starts[first] + max_tokens - fresh, side="right")) - 1
        yield held, fresh, first, last
        held, first = prefix, last


def _plan(
    rows: PackedRows,
    starts: NDArray[np.int64],
    held: int,
    fresh: int,
    first: int,
    last: int,
    *,
    hold: bool,
) -> ForwardPlan:
    suffixes = rows.tokens[starts[first] : starts[last]]
    token_ids = np.concatenate((rows.tokens[held : held + fresh], suffixes))
    label_ids, label_lens = rows.labels_of(first, last)
    span = GroupSpan(held=held, fresh=fresh, suffix_lens=rows.suffix_lens[first:last])
    layout = ForwardLayout((span,))
    return ForwardPlan(layout, token_ids, label_ids, label_lens, hold, rows.normalised)
