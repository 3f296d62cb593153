"""Which forwards are replayed as graphs, and how they are padded to a graph's size. Pure numpy.

Padding is one more row behind all others, which nobody reads. So it is computed like any other row:
finite, in its own place and seen by no one. Only its time is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.oneshot.layout import ForwardLayout, GroupSpan
from sglang_prefill_ext.oneshot.planner import ForwardPlan

SMALLEST_TOKENS = 16
"""Still smaller graphs would save less than their memory is worth."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """The size of a graph: forwards up to it are padded to it.

    Attributes:
        tokens: of the forward, >= 1.
    """

    tokens: int

    @property
    def reads(self) -> int:
        """Rows that are read; most rows have more than one token."""
        return max(1, self.tokens // 2)

    @property
    def groups(self) -> int:
        """Every group may add a tile that is not full, and tiles that are not there cost time."""
        return max(1, self.tokens // 16)

    def holds(self, layout: ForwardLayout) -> bool:
        """Whether a forward of rows that are read at their ends can be padded to this size."""
        return (
            layout.num_tokens <= self.tokens
            and layout.num_rows <= self.reads
            and len(layout.groups) <= self.groups
        )


def buckets_up_to(max_tokens: int) -> tuple[Bucket, ...]:
    """Powers of two and one and a half times these, ascending; the last one is `max_tokens`.

    So a forward is padded by half of its tokens at most, unless it has very few.
    """
    sizes = {max_tokens}
    power = SMALLEST_TOKENS
    while power < max_tokens:
        sizes |= {power, min(power * 3 // 2, max_tokens)}
        power *= 2
    return tuple(Bucket(size) for size in sorted(sizes))


def eager_reason(
    plan: ForwardPlan, held: Sequence[object | None], stores: Sequence[object | None]
) -> str:
    """Return why a forward is not like those that graphs replay, or "".

    Args:
        held, stores: see `PackedExecutor.launch`.
    """
    if any(source is not None for source in held):
        return "held_prefix"
    if any(store is not None for store in stores):
        return "kept_prefix"
    if plan.override_at.size:
        return "overrides"
    if plan.adapter:
        return "adapter"
    return "" if plan.layout.reads_row_ends else "many_reads"


@dataclass(frozen=True, slots=True, eq=False)
class PaddedForward:
    """A forward of exactly the size of a bucket.

    Attributes:
        layout: of `bucket.tokens` tokens; a padding row is the last one.
        token_ids: int64 `[bucket.tokens]`.
        reads: int64 `[bucket.reads]`: tokens with which the last layer goes on, ascending.
        places: int64 `[bucket.reads]`: where the rows' own are among them; behind these, zeros.
    """

    layout: ForwardLayout
    token_ids: NDArray[np.int64]
    reads: NDArray[np.int64]
    places: NDArray[np.int64]


def pad(layout: ForwardLayout, token_ids: NDArray[np.int32], bucket: Bucket) -> PaddedForward:
    """Pad a forward to a bucket that holds it."""
    assert bucket.holds(layout), "choose a larger bucket"
    missing = bucket.tokens - layout.num_tokens
    padding = (GroupSpan(0, 0, np.array([missing], np.int32)),) if missing else ()
    ids = np.zeros(bucket.tokens, dtype=np.int64)
    ids[: layout.num_tokens] = token_ids
    ends = layout.row_ends
    goes_on = np.zeros(bucket.tokens, dtype=np.bool_)
    goes_on[ends] = True
    # Kernels want ascending queries, so other tokens fill up, the last ones first.
    others = np.flatnonzero(~goes_on)
    goes_on[others[len(others) - (bucket.reads - len(ends)) :]] = True
    reads = np.flatnonzero(goes_on)
    places = np.zeros(bucket.reads, dtype=np.int64)
    places[: len(ends)] = np.searchsorted(reads, ends)
    return PaddedForward(ForwardLayout(layout.groups + padding), ids, reads, places)
