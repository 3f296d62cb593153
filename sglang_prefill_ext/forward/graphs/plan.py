"""Which forwards are replayed as graphs, how they are padded to a graph's size, and what is told.

Padding is one more row behind all others, which nobody reads. So it is computed like any other row:
finite, in its own place and seen by no one. Only its time is lost. Pure numpy.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.layout.tokens import ForwardLayout, GroupSpan
from sglang_prefill_ext.scheduling.budget import groups_of
from sglang_prefill_ext.scheduling.planner import ForwardPlan

REPLAYED = "graph"
NO_GRAPHS = "no_graphs"
"""How a forward runs where there are none although they were asked for."""


@dataclass(slots=True)
class GraphUse:
    """The graphs of one scheduler.

    Attributes:
        sizes: tokens of each graph.
        obstacle: why there is none, or no longer, although they were asked for; empty if there is.
        bytes: memory of the device that all of them keep; 0 without CUDA, where it is not known.
        seconds: for which the start was longer.
        forwards: `REPLAYED` ones, and eager ones by reason. Empty unless graphs were asked for.
    """

    sizes: tuple[int, ...] = ()
    obstacle: str = ""
    bytes: int = 0
    seconds: float = 0.0
    forwards: Counter[str] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, Any]:
        """Return all of it, ready for JSON."""
        return asdict(self) | {"forwards": dict(self.forwards)}


SMALLEST_TOKENS = 16
"""Still smaller graphs would save less than their memory is worth."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """The size of a graph: forwards up to it are padded to it.

    All tokens go on behind the last layer, since each may be a row of its own. That makes the half
    of one layer wider, and leaves the last layer's attention that of any other.

    Attributes:
        tokens: of the forward, >= 1.
    """

    tokens: int

    @property
    def groups(self) -> int:
        return groups_of(self.tokens)

    def holds(self, layout: ForwardLayout) -> bool:
        """Whether a forward of rows that are read at their ends can be padded to this size."""
        return layout.num_tokens <= self.tokens and len(layout.groups) <= self.groups


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


def eager_reason(plan: ForwardPlan, *, most_held: int, stores: bool) -> str:
    """Return why a forward is not like those that graphs replay, or "".

    Args:
        most_held: tokens of held prefixes that graphs can read where these lie.
        stores: whether K/V are stored where graphs store none.
    """
    if sum(group.held for group in plan.layout.groups) > most_held:
        return "held_prefix"
    if stores:
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
        row_ends: int64 `[bucket.tokens]`: tokens that are read; zeros behind those of the rows.
    """

    layout: ForwardLayout
    token_ids: NDArray[np.int64]
    row_ends: NDArray[np.int64]


def pad(layout: ForwardLayout, token_ids: NDArray[np.int32], bucket: Bucket) -> PaddedForward:
    """Pad a forward to a bucket that holds it."""
    assert bucket.holds(layout), "choose a larger bucket"
    missing = bucket.tokens - layout.num_tokens
    padding = (GroupSpan(0, 0, np.array([missing], np.int32)),) if missing else ()
    ids, ends = np.zeros((2, bucket.tokens), dtype=np.int64)
    ids[: layout.num_tokens] = token_ids
    ends[: layout.num_rows] = layout.row_ends
    return PaddedForward(ForwardLayout(layout.groups + padding), ids, ends)
