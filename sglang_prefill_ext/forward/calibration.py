"""Measure at start what a forward costs: temporary memory, time per launch and per token."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from functools import partial

import torch

from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.forward.executor import PackedExecutor
from sglang_prefill_ext.forward.graphs.useful import capture_useful
from sglang_prefill_ext.forward.memory import (
    SAFETY,
    MemoryModel,
    Sample,
    fit_memory,
    free_bytes,
    peak_bytes,
)
from sglang_prefill_ext.forward.pace import (
    CHUNK_TOKENS,
    LEAST_TOKENS,
    ROW_TOKENS,
    Agree,
    chunk_plans,
    measured_pace,
    run,
    sample_plan,
    sampled_tokens,
    tokens_while_launching,
)
from sglang_prefill_ext.layout.recurrence_plan import carries_states
from sglang_prefill_ext.scheduling.budget import UNLIMITED, ForwardBudget
from sglang_prefill_ext.scheduling.graph_room import NO_GRAPHS, GraphCost
from sglang_prefill_ext.scheduling.planner import ForwardPlan
from sglang_prefill_ext.scheduling.prefixed_forward import Executor

logger = logging.getLogger(__name__)

MEMORY_SHARE = 0.8
"""Share of the free memory for forwards; the rest is for fragmentation and for stock batches."""

LONGEST_S = 5.0
"""Seconds of a forward, at most: SGLang's health checks are answered between forwards, within 20 s.
Only a large model on a CPU is so slow. A single long prompt may still take several times as long,
as its attention grows with the square of its length."""


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
    graphs = NO_GRAPHS
    try:
        sampled = sampled_tokens(executor, max_tokens, agree)
        memory, max_tokens = _largest_that_fits(executor, max_tokens, sampled, agree)
        pace = eager = measured_pace(executor, sampled, max_tokens)
        if graph_tokens:
            # Measure eager forwards first: from here on short ones are replayed.
            if useful_graphs:
                free = min(free_bytes(executor.model.device), most_bytes)
                free_tokens = free / max(memory.bytes_per_token, 1)
                hidden_tokens = tokens_while_launching(executor, eager, max_tokens)
                capture_useful(executor, graph_tokens, hidden_tokens, free_tokens)
            else:
                executor.capture_graphs(graph_tokens)
            largest = max(executor.graph_use.sizes, default=0)
            if largest >= LEAST_TOKENS:
                pace = measured_pace(executor, largest, max_tokens)
                eager_tokens = round(eager.short_s / pace.s_per_token)
                carries = carries_states(executor.model.recurrence)
                graphs = GraphCost(largest, eager_tokens, carries, executor.most_held_in_graphs)
    except RuntimeError as error:
        raise ConfigError(
            f"prefill-only: a forward of {max_tokens} tokens failed ({error}). If memory is "
            "exhausted, lower --prefill-only-max-forward-tokens or --mem-fraction-static."
        ) from error
    own = min(free_bytes(executor.model.device), most_bytes - executor.graph_use.bytes)
    usable = int(MEMORY_SHARE * own) - memory.fixed_bytes
    in_time = max(LEAST_TOKENS, round(LONGEST_S / eager.s_per_token))
    per_token, per_row, too_much, too_late, launch_tokens, eager_tokens = agree(
        [
            *(memory.bytes_per_token, memory.bytes_per_row, -usable, -in_time),
            *(pace.launch_tokens, graphs.eager_tokens),
        ]
    )
    return Calibration(
        ForwardBudget(min(max_tokens, -too_late), -too_much, per_token, per_row),
        launch_tokens,
        1 / pace.s_per_token,
        replace(graphs, eager_tokens=eager_tokens),
    )


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


def measured_memory(executor: PackedExecutor, max_tokens: int, sampled: int) -> MemoryModel:
    """Run forwards of up to `sampled` tokens; fit a model of the memory of up to `max_tokens`.

    A read-out begins after the layers have freed their memory. So the peak of a read-out of whole
    chunks of logits, measured with few tokens, is a lower bound of the model's fixed part.
    """
    tokens, device = max(sampled, LEAST_TOKENS), executor.model.device
    beyond = tokens < max_tokens
    sizes = (
        (tokens if beyond else min(CHUNK_TOKENS, tokens // 2), 1),
        (tokens, tokens // ROW_TOKENS),
        (tokens, tokens // 2),
    )
    plans = [sample_plan(*size, executor.model) for size in sizes]
    run(executor, plans[0])  # allocates what is kept, such as workspaces
    samples = (
        Sample(plan.num_tokens, plan.num_rows, peak_bytes(device, partial(run, executor, plan)))
        for plan in plans
    )
    fitted = fit_memory(*samples, beyond=beyond)
    if not executor.chunk_reads:
        return fitted
    readout = SAFETY * max(
        peak_bytes(device, partial(_run_if_possible, executor, plan))
        for plan in chunk_plans(executor.chunk_reads, tokens)
    )
    readout *= max(1.0, min(2 * executor.chunk_reads, max_tokens) / tokens)  # of whole chunks
    return replace(fitted, fixed_bytes=max(fitted.fixed_bytes, math.ceil(readout)))


def _run_if_possible(executor: Executor, plan: ForwardPlan) -> None:
    """Run a forward; if its sampler fails, only log it: requests that sample get the error."""
    try:
        run(executor, plan)
    except torch.OutOfMemoryError:
        raise
    except Exception:
        logger.warning("Prefill-only serving: a read-out could not be measured", exc_info=True)
