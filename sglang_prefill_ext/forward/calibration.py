"""Measure at start what a forward costs: temporary memory, time per launch and per token."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import torch

from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.forward.executor import PackedExecutor
from sglang_prefill_ext.forward.graphs.plan import useful_tokens
from sglang_prefill_ext.forward.memory import MemoryModel, free_bytes
from sglang_prefill_ext.forward.memory_samples import measured_memory
from sglang_prefill_ext.forward.pace import (
    CHUNK_TOKENS,
    LEAST_TOKENS,
    Agree,
    Pace,
    measured_pace,
    sampled_tokens,
    tokens_while_launching,
)
from sglang_prefill_ext.layout.recurrence_plan import carries_states
from sglang_prefill_ext.scheduling.budget import UNLIMITED, ForwardBudget
from sglang_prefill_ext.scheduling.graph_room import NO_GRAPHS, GraphCost

logger = logging.getLogger(__name__)

MEMORY_SHARE = 0.8
"""Share of the free memory for forwards; the rest is for fragmentation and for stock batches."""

LONGEST_S = 5.0
"""Seconds of a forward, at most: SGLang's health checks are answered between forwards, within 20 s.
Only a large model on a CPU is so slow. A single long prompt may still take several times as long,
as its attention grows with the square of its length."""

GRAPH_SHARE = 0.25
"""Most of the free memory for graphs, unless their size is asked for."""

FEWER_TOKENS = 4096
"""Tokens of the largest graph if larger ones cannot be captured."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured with this model on this device; the same on every rank except the speed.

    Attributes:
        budget: of one forward.
        launch_tokens: the cost of a forward apart from its tokens, in tokens computed in that time;
            of a replayed forward if there are graphs.
        graphs: the size of the largest graph, and the cost of eager forwards beside it.
        tokens_per_s: speed of a forward apart from its launch, > 0. Each rank has its own number;
            the engine decides nothing by it.
    """

    budget: ForwardBudget
    launch_tokens: int
    tokens_per_s: float
    graphs: GraphCost = NO_GRAPHS

    def __str__(self) -> str:
        """For the log."""
        budget, graphs = self.budget, self.graphs
        replayed = f"; graphs replay up to {graphs.tokens:,} tokens" if graphs.tokens else ""
        return (
            f"a forward has at most {budget.max_tokens:,} tokens and {budget.max_bytes >> 20:,} "
            f"MiB; {self.tokens_per_s:,.0f} tokens/s, a launch takes as long as "
            f"{self.launch_tokens:,} tokens{replayed}"
        )


def calibrate(
    executor: PackedExecutor,
    max_tokens: int,
    agree: Agree,
    most_bytes: int = UNLIMITED,
    graph_tokens: int = 0,
    *,
    useful_graphs: bool = False,
) -> Calibration:
    """Run a few forwards before anything is served, and capture graphs.

    If a forward of `max_tokens` exhausts the memory, half as many are tried, and so on.

    Args:
        max_tokens: most tokens of one forward, as the operator allows.
        agree: makes all ranks plan with the same numbers.
        most_bytes: the share of the free memory for this scheduler.
        graph_tokens: tokens of the largest graph; 0 for none.
        useful_graphs: capture only graphs that save time, see `capture_useful`.

    Raises:
        ConfigError: a forward fails for another reason, or none of `CHUNK_TOKENS` fits either.
    """
    try:
        sampled = sampled_tokens(executor, max_tokens, agree)
        memory, max_tokens = _largest_that_fits(executor, max_tokens, sampled, agree)
        pace = eager = measured_pace(executor, sampled, max_tokens)
        graphs = NO_GRAPHS
        if graph_tokens:
            # Eager forwards are measured by now: from here on short ones are replayed.
            if useful_graphs:
                free = min(free_bytes(executor.model.device), most_bytes)
                free_tokens = free / max(memory.bytes_per_token, 1)
                hidden_tokens = tokens_while_launching(executor, eager, max_tokens)
                capture_useful(executor, graph_tokens, hidden_tokens, free_tokens)
            else:
                executor.capture_graphs(graph_tokens)
            pace, graphs = _replayed(executor, eager, max_tokens)
    except RuntimeError as error:
        raise ConfigError(
            f"prefill-only: a forward of {max_tokens} tokens failed ({error}). If memory is "
            "exhausted, lower --prefill-only-max-forward-tokens or --mem-fraction-static."
        ) from error
    own = min(free_bytes(executor.model.device), most_bytes - executor.graph_use.bytes)
    usable = int(MEMORY_SHARE * own) - memory.fixed_bytes
    per_token, per_row, too_much, too_late, launch_tokens, eager_tokens = agree(
        [
            *(memory.bytes_per_token, memory.bytes_per_row, -usable),
            *(-_tokens_in_time(eager, max_tokens), pace.launch_tokens, graphs.eager_tokens),
        ]
    )
    return Calibration(
        ForwardBudget(-too_late, -too_much, per_token, per_row),
        launch_tokens,
        1 / pace.s_per_token,
        replace(graphs, eager_tokens=eager_tokens),
    )


def capture_useful(
    executor: PackedExecutor, most_tokens: int, hidden_tokens: int, free_tokens: float
) -> None:
    """Capture graphs of those forwards that take the host longer to launch than the device to run.

    Larger ones would only be padded.

    Args:
        hidden_tokens: computed by the device while the host launches an eager forward.
        free_tokens: for which a forward would take all the free memory. Graphs keep about as much
            as their largest forward takes, and may keep `GRAPH_SHARE`.
    """
    tokens = useful_tokens(most_tokens, hidden_tokens, GRAPH_SHARE * free_tokens)
    executor.capture_graphs(tokens)
    if executor.graph_use.obstacle and tokens > FEWER_TOKENS:
        executor.forget_graphs()
        executor.capture_graphs(FEWER_TOKENS)


def _replayed(executor: PackedExecutor, eager: Pace, max_tokens: int) -> tuple[Pace, GraphCost]:
    """The pace of forwards now that graphs are captured, and the cost of eager ones beside them."""
    largest = max(executor.graph_use.sizes, default=0)
    if largest < LEAST_TOKENS:
        return eager, NO_GRAPHS
    pace = measured_pace(executor, largest, max_tokens)
    eager_tokens = round(eager.short_s / pace.s_per_token)
    carries = carries_states(executor.model.recurrence)
    return pace, GraphCost(largest, eager_tokens, carries, executor.most_held_in_graphs)


def _tokens_in_time(eager: Pace, max_tokens: int) -> int:
    """Return `max_tokens`, or as many as take `LONGEST_S`."""
    tokens = max(LEAST_TOKENS, round(LONGEST_S / eager.s_per_token))
    if tokens >= max_tokens:
        return max_tokens
    logger.warning(
        "A packed forward of more than %d tokens would take over %.0f s here, so longer prompts "
        "take the stock path.",
        *(tokens, LONGEST_S),
    )
    return tokens


def _largest_that_fits(
    executor: PackedExecutor, max_tokens: int, sampled: int, agree: Agree
) -> tuple[MemoryModel, int]:
    """Measure the memory of `max_tokens`, or of fewer if they do not fit; return how many, too.

    Raises:
        OutOfMemoryError: forwards of `CHUNK_TOKENS` or less do not fit.
    """
    memory = failure = None
    try:
        memory = measured_memory(executor, max_tokens, sampled)
    except torch.OutOfMemoryError as error:
        if max_tokens <= CHUNK_TOKENS:
            raise
        failure = str(error)
    (exhausted,) = agree([int(memory is None)])
    if memory is not None and not exhausted:
        return memory, max_tokens
    fewer = max(max_tokens // 2, CHUNK_TOKENS)
    logger.warning(
        "A packed forward of %d tokens exhausts the memory (%s), so %d are tried. To allow more, "
        "lower --mem-fraction-static.",
        *(max_tokens, failure or "of another rank", fewer),
    )
    return _largest_that_fits(executor, fewer, min(sampled, fewer), agree)
