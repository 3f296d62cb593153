"""Decide which forwards graphs can replay, pad them to a graph's size, and count them. Pure numpy.

Padding is one more group after all others, whose rows of one token are not read. They are computed
like any other row, so their numbers are finite and no other row sees them. They cost nothing but
time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.layout.tokens import ForwardLayout, GroupSpan
from sglang_prefill_ext.scheduling.budget import groups_of
from sglang_prefill_ext.scheduling.planner import ForwardPlan

REPLAYED = "graph"
NO_GRAPHS = "no_graphs"
"""Why a forward runs eagerly if there are no graphs although they were asked for."""


@dataclass(slots=True)
class GraphUse:
    """The graphs of one scheduler.

    Attributes:
        sizes: tokens of each graph.
        obstacle: why there are no graphs, or no longer, although they were asked for; else empty.
        bytes: device memory that all graphs keep; 0 without CUDA, where it is not known.
        seconds: how long the capture took at start.
        forwards: counts of forwards: `REPLAYED`, and eager ones by reason. Empty unless graphs were
            asked for.
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
"""Smaller graphs would save too little time for the memory that they take."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """The size of a graph; smaller forwards are padded to it.

    In a graph all tokens pass through the whole last layer, the final norm and, if there is one,
    the head that makes vectors, since any of them may be read. So the last layer's attention is
    computed like that of other layers, and all that follows for more tokens than in an eager
    forward.

    Attributes:
        tokens: of the padded forward, >= 1.
    """

    tokens: int

    @property
    def groups(self) -> int:
        return groups_of(self.tokens)

    def holds(self, layout: ForwardLayout) -> bool:
        """Whether a forward of rows that are read once can be padded to this size."""
        return layout.num_tokens <= self.tokens and len(layout.groups) <= self.groups


def buckets_up_to(max_tokens: int) -> tuple[Bucket, ...]:
    """Buckets of powers of two and of 1.5 times these, ascending; the last is `max_tokens`.

    So padding adds at most half of a forward's tokens, unless it has very few.
    """
    sizes = {max_tokens}
    power = SMALLEST_TOKENS
    while power < max_tokens:
        sizes |= {power, min(power * 3 // 2, max_tokens)}
        power *= 2
    return tuple(Bucket(size) for size in sorted(sizes))


def eager_reason(plan: ForwardPlan, *, most_held: int, stores: bool) -> str:
    """Return why graphs cannot replay a forward, its size apart; empty if they can.

    Args:
        most_held: most tokens of held prefixes that graphs can read in the pool.
        stores: whether the forward stores K/V although graphs cannot.
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


def pad(
    layout: ForwardLayout, token_ids: NDArray[np.int32], bucket: Bucket
) -> tuple[ForwardLayout, NDArray[np.int64], NDArray[np.int64]]:
    """Pad a forward to exactly the size of a bucket that holds it.

    Returns:
        A layout whose last group is padding, if any is needed; its token ids; and the read token of
        each row, then zeros. Both are int64 `[bucket.tokens]`.
    """
    assert bucket.holds(layout), "choose a larger bucket"
    missing = bucket.tokens - layout.num_tokens
    padding = (GroupSpan(0, 0, np.ones(missing, np.int32)),) if missing else ()
    ids, read_at = np.zeros((2, bucket.tokens), dtype=np.int64)
    ids[: layout.num_tokens] = token_ids
    read_at[: layout.num_rows] = layout.read_positions()
    return replace(layout, groups=layout.groups + padding), ids, read_at
