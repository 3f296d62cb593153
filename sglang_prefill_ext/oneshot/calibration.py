"""Measure at start what a forward costs: temporary memory, and time besides its tokens."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import torch

from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.oneshot.budget import ForwardBudget, MemoryModel, Sample, fit_memory
from sglang_prefill_ext.oneshot.executor import PackedExecutor
from sglang_prefill_ext.oneshot.flight import Executor
from sglang_prefill_ext.oneshot.memory import free_bytes, peak_bytes
from sglang_prefill_ext.oneshot.planner import ForwardPlan, plan_forward
from sglang_prefill_ext.oneshot.split import split_request
from sglang_prefill_ext.wire.packed import NO_INTS, PackedRows, int_array

CHUNK_TOKENS = 4096
"""A row of so many tokens fills the chunks of attention scores."""

ROW_TOKENS = 64
"""Of a usual row, prefix left out; a sample with the most rows has 32 times as many."""

_LEAST_TOKENS = 128  # for samples that differ; they may exceed a smaller limit

_TIMED_RUNS = 3

MEMORY_SHARE = 0.8
"""Of the free memory; the rest is for fragmentation and for what stock batches take."""

Agree: TypeAlias = Callable[[list[int]], list[int]]
"""The largest of each number over all tensor-parallel ranks."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured of this model on this device; the same on every rank.

    Attributes:
        budget: of one forward.
        launch_tokens: what a forward costs besides its tokens, in tokens computed in that time.
    """

    budget: ForwardBudget
    launch_tokens: int


def calibrate(
    executor: PackedExecutor,
    device: torch.device,
    max_tokens: int,
    agree: Agree,
    most_bytes: int | None = None,
    graph_tokens: int = 0,
) -> Calibration:
    """Run a few forwards before anything is served, and capture graphs.

    Args:
        max_tokens: of one forward, as the operator allows.
        agree: makes all ranks plan with the same numbers.
        most_bytes: of the free memory, what is for this scheduler; None for all of it.
        graph_tokens: of the largest graph; 0 for none.

    Raises:
        ConfigError: the largest forward that the operator allows does not fit.
    """
    try:
        memory = measured_memory(executor, device, max_tokens)
        if graph_tokens:
            # Between the two: eager forwards need memory, and short ones are launched as graphs.
            executor.capture_graphs(graph_tokens)
        launch_tokens = measured_launch(executor, max_tokens)
    except RuntimeError as error:
        raise ConfigError(
            f"prefill-only: a forward of {max_tokens} tokens failed ({error}). If memory is "
            "exhausted, lower --prefill-only-max-forward-tokens or --mem-fraction-static."
        ) from error
    free = free_bytes(device)
    own = free if most_bytes is None else min(free, most_bytes)
    usable = int(MEMORY_SHARE * own) - memory.fixed_bytes
    per_token, per_row, too_much, launch_tokens = agree(
        [memory.bytes_per_token, memory.bytes_per_row, -usable, launch_tokens]
    )
    return Calibration(ForwardBudget(max_tokens, -too_much, per_token, per_row), launch_tokens)


def measured_launch(executor: PackedExecutor, max_tokens: int) -> int:
    """Return by how many tokens a forward would have to be longer to take twice as long as none.

    Taken from the times of a short and of a long forward; at most `max_tokens`.
    """
    tokens = max(min(CHUNK_TOKENS, max_tokens), _LEAST_TOKENS)
    short_s = _fastest_s(executor, _plan(ROW_TOKENS, 1, executor))
    long_s = _fastest_s(executor, _plan(tokens, tokens // ROW_TOKENS, executor))
    s_per_token = (long_s - short_s) / (tokens - ROW_TOKENS)
    if s_per_token * max_tokens <= short_s:
        return max_tokens
    return max(1, round(short_s / s_per_token) - ROW_TOKENS)


def _fastest_s(executor: Executor, plan: ForwardPlan) -> float:
    """Of several times, as whatever disturbs one only makes it slower."""
    return min(timeit.repeat(partial(_run, executor, plan), number=1, repeat=_TIMED_RUNS))


def measured_memory(executor: PackedExecutor, device: torch.device, max_tokens: int) -> MemoryModel:
    """Run three forwards of up to `max_tokens` tokens, and fit what they took."""
    tokens = max(max_tokens, _LEAST_TOKENS)
    sizes = (
        (min(CHUNK_TOKENS, tokens // 2), 1),
        (tokens, tokens // ROW_TOKENS),
        (tokens, tokens // 2),
    )
    plans = [_plan(*size, executor) for size in sizes]
    _run(executor, plans[0])  # sets up what is kept, such as workspaces
    samples = (
        Sample(plan.num_tokens, plan.num_rows, peak_bytes(device, partial(_run, executor, plan)))
        for plan in plans
    )
    return fit_memory(*samples)


def _run(executor: Executor, plan: ForwardPlan) -> None:
    nothing = [None] * len(plan.layout.groups)
    executor.launch(plan, nothing, nothing).wait()


def _plan(tokens: int, rows: int, executor: PackedExecutor) -> ForwardPlan:
    """A forward whose rows pass over the vocabulary; the prefix, where prompts can share one, is a
    quarter if there are rows. It is shorter, and there are more rows, where prompts cannot be so
    long."""
    prefix = tokens // 4 if rows > 1 and executor.causal else 0
    if executor.longest_prompt is not None:
        prefix = min(prefix, executor.longest_prompt // 2)
        rows = max(rows, -(-(tokens - prefix) // (executor.longest_prompt - prefix)))
    labels = [] if executor.vector_width else [0]
    lens = np.diff(np.linspace(0, tokens - prefix, rows + 1).astype(np.int32))
    packed = PackedRows(
        np.zeros(tokens, np.int32),
        prefix,
        int_array(lens.tolist()),
        int_array(labels),
        NO_INTS,
        vector_width=executor.vector_width,
    )
    (piece,) = split_request(packed, ForwardBudget(tokens))
    return plan_forward([piece])
