"""Forwards that are run at start: their plans, and what a launch and each token cost."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from sglang_prefill_ext.forward.executor import PackedExecutor
from sglang_prefill_ext.forward.model import Model
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.planner import Executor, ForwardPlan, plan_forward
from sglang_prefill_ext.scheduling.split import split_request
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Labels, Vectors
from sglang_prefill_ext.wire.sampling import Sampling

Agree: TypeAlias = Callable[[list[int]], list[int]]
"""The largest of each number over all tensor-parallel ranks."""

_TIMED_RUNS = 3

CHUNK_TOKENS = 4096
"""A forward with one row of so many tokens fills whole chunks of attention scores."""

ROW_TOKENS = 64
"""Tokens of a usual row without its prefix; the sample with the most rows has 32 times as many."""

LEAST_TOKENS = 128
"""Of a large sample: samples need different sizes, so they may exceed a smaller limit."""

CPU_TOKENS, _CPU_S = 2048, 2.0
"""Of a forward that is measured on a CPU, at most: tokens, and expected seconds."""


def sampled_tokens(executor: PackedExecutor, max_tokens: int, agree: Agree) -> int:
    """Return how many tokens the largest forward that is measured has; the same on every rank.

    On a CPU `max_tokens` of a real model take minutes, and SGLang's watchdog ends a scheduler after
    five. There it is `CPU_TOKENS`, halved while such a forward may take more than `_CPU_S`.
    """
    if executor.model.device.type == "cuda":
        return max_tokens
    short_s = _fastest_s(executor, sample_plan(ROW_TOKENS, 1, executor.model))
    (short_us,) = agree([round(1e6 * short_s)])
    tokens = CPU_TOKENS
    while tokens > LEAST_TOKENS and tokens * short_us > 1e6 * _CPU_S * ROW_TOKENS:
        tokens //= 2
    return min(tokens, max_tokens)


def sample_plan(tokens: int, rows: int, model: Model) -> ForwardPlan:
    """A forward of `tokens` tokens, whose rows are read over the whole vocabulary or as vectors.

    If there are several rows and prompts can share a prefix, the prefix has a quarter of the
    tokens. If prompts cannot be so long, it is shorter, and there are more rows. Token ids differ,
    since equal ones would all be routed to the same experts.
    """
    prefix = tokens // 4 if rows > 1 and model.causal else 0
    if model.longest_prompt is not None:
        prefix = min(prefix, model.longest_prompt // 2)
        rows = max(rows, -(-(tokens - prefix) // (model.longest_prompt - prefix)))
    lens = np.diff(np.linspace(0, tokens - prefix, rows + 1).astype(np.int32))
    packed = PackedRows(
        np.arange(tokens, dtype=np.int32) % model.vocab_size,
        prefix,
        int_array(lens.tolist()),
        Vectors(model.vector_width) if model.vector_width else Labels(int_array([0])),
    )
    return _plan_of(packed)


def chunk_plans(chunk_reads: int, tokens: int) -> list[ForwardPlan]:
    """Forwards of at most `tokens` rows of one token that fill two chunks of logits.

    One reads the most probable token of each row, the other draws a token.
    """
    rows = min(2 * chunk_reads, tokens)
    sampled = Sampling.one(temperature=1.0, top_p=0.9, min_p=0.0, top_k=50, seed=1, biases={})
    draws = Sampling(np.repeat(sampled.draws, rows), sampled.biases)
    ids, lens = np.zeros(rows, np.int32), int_array([1] * rows)
    reads = (Labels(num_best=1, sampling=sampling) for sampling in (None, draws))
    return [_plan_of(PackedRows(ids, 0, lens, read)) for read in reads]


def _plan_of(packed: PackedRows) -> ForwardPlan:
    (piece,) = split_request(packed, ForwardBudget(len(packed.tokens)))
    return plan_forward([piece])


@dataclass(frozen=True, slots=True)
class Pace:
    """The time of forwards, all eager or all replayed: a straight line through two measurements.

    Attributes:
        short_s: seconds of a forward of `ROW_TOKENS` tokens.
        s_per_token: seconds of each further token, > 0.
    """

    short_s: float
    s_per_token: float

    @property
    def launch_tokens(self) -> int:
        """How many tokens take as long as a launch, which is the line's value at 0 tokens."""
        return max(1, round(self.short_s / self.s_per_token) - ROW_TOKENS)


def measured_pace(executor: PackedExecutor, longest: int, max_tokens: int) -> Pace:
    """Time a short and a long forward.

    Args:
        longest: tokens of the long one, unless it is more than `CHUNK_TOKENS`.
        max_tokens: limits the launch cost in tokens where tokens cost next to nothing.
    """
    tokens = max(min(CHUNK_TOKENS, longest), LEAST_TOKENS)
    short_s = _fastest_s(executor, sample_plan(ROW_TOKENS, 1, executor.model))
    long_s = _fastest_s(executor, sample_plan(tokens, tokens // ROW_TOKENS, executor.model))
    s_per_token = (long_s - short_s) / (tokens - ROW_TOKENS)
    return Pace(short_s, max(s_per_token, short_s / (max_tokens + ROW_TOKENS)))


def tokens_while_launching(executor: PackedExecutor, eager: Pace, max_tokens: int) -> int:
    """How many tokens the device computes while the host launches an eager forward.

    Args:
        max_tokens: of a forward that keeps the device busy for longer than that, if any does.
    """
    longest_s = _fastest_s(
        executor, sample_plan(max_tokens, max(1, max_tokens // ROW_TOKENS), executor.model)
    )
    return round(eager.short_s * max_tokens / longest_s)


def _fastest_s(executor: Executor, plan: ForwardPlan) -> float:
    """The shortest of several times, as disturbances only make a run slower."""
    return min(timeit.repeat(partial(run, executor, plan), number=1, repeat=_TIMED_RUNS))


def run(executor: Executor, plan: ForwardPlan) -> None:
    """Run a forward to its end."""
    executor.launch(plan).wait()
