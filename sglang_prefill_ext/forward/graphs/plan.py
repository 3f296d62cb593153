"""Decide which forwards graphs can replay, pad them to a graph's size, and count them. Pure numpy.

Padding is one more group after all others, whose rows are not read. They are computed like any
other row, so their numbers are finite and no other row sees them. They cost nothing but time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.layout.tokens import ForwardLayout, GroupSpan
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

FINE_TOKENS = 256
"""From here on, padding takes time: on an H100 a forward of Qwen3-0.6B's shape takes 1.3 ms with
192 tokens and 4.4 ms with 2,048."""


def sizes_up_to(max_tokens: int) -> list[int]:
    """Tokens of each graph: powers of two, and between two of them one more size, or seven from
    `FINE_TOKENS` on; ascending, last `max_tokens`.

    So padding adds at most half of a forward's tokens, and an eighth of more than `FINE_TOKENS`,
    unless it has very few.
    """
    sizes = {max_tokens}
    power = SMALLEST_TOKENS
    while power < max_tokens:
        steps = 8 if power >= FINE_TOKENS else 2
        sizes |= {min(power + power * step // steps, max_tokens) for step in range(steps)}
        power *= 2
    return sorted(sizes)


def useful_tokens(most_tokens: int, hidden_tokens: int, affordable: float) -> int:
    """Tokens of the largest graph that saves time.

    Args:
        hidden_tokens: see `calibration.capture_useful`.
        affordable: most tokens for which there is memory; the smallest graph needs none.
    """
    sizes = sizes_up_to(most_tokens)
    enough = next((tokens for tokens in sizes if tokens >= hidden_tokens), most_tokens)
    return max(tokens for tokens in sizes if tokens <= max(min(enough, affordable), sizes[0]))


def eager_reason(plan: ForwardPlan, *, most_held: int) -> str:
    """Return why graphs cannot replay a forward, its size apart; empty if they can.

    Args:
        most_held: most tokens of held prefixes that graphs can read in the pool; 0: they neither
            read nor write it.
    """
    if plan.layout.held.sum() > most_held:
        return "held_prefix"
    if not most_held and any(slots is not None for slots in plan.stores):
        return "kept_prefix"
    if plan.override_at.size:
        return "overrides"
    if any(plan.adapters):
        return "adapter"
    return "" if plan.layout.reads_row_ends else "many_reads"


def pad(
    layout: ForwardLayout, token_ids: NDArray[np.int32], tokens: int
) -> tuple[ForwardLayout, NDArray[np.int64], NDArray[np.int64]]:
    """Pad a forward to exactly so many tokens, at least as many as it has.

    Returns:
        A layout whose last group is padding, if any is needed, in rows of one token; its token ids;
        and the read token of each row, then zeros. Both are int64 `[tokens]`.
    """
    ids, read_at = np.zeros((2, tokens), dtype=np.int64)
    ids[: layout.num_tokens] = token_ids
    read_at[: layout.num_rows] = layout.read_positions()
    return padded(layout, tokens), ids, read_at


def padded(layout: ForwardLayout, tokens: int, *, in_one_row: bool = False) -> ForwardLayout:
    """Pad a layout to exactly so many tokens.

    Args:
        in_one_row: for recurrent layers, to which every row is a sequence; attention would take
            longer.
    """
    missing = tokens - layout.num_tokens
    assert missing >= 0, "choose a larger graph"
    if not missing:
        return layout
    rows = np.array([missing], np.int32) if in_one_row else np.ones(missing, np.int32)
    return replace(layout, groups=(*layout.groups, GroupSpan(0, 0, rows)))
