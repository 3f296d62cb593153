"""Time forwards: what a launch costs, and what each token adds."""

from __future__ import annotations

import timeit
from dataclasses import dataclass
from functools import partial

from sglang_prefill_ext.forward.executor import PackedExecutor
from sglang_prefill_ext.forward.sample_plans import (
    CHUNK_TOKENS,
    LEAST_TOKENS,
    ROW_TOKENS,
    sample_plan,
)
from sglang_prefill_ext.scheduling.planner import ForwardPlan
from sglang_prefill_ext.scheduling.prefixed_forward import Executor

_TIMED_RUNS = 3


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


def _fastest_s(executor: Executor, plan: ForwardPlan) -> float:
    """The shortest of several times, as disturbances only make a run slower."""
    return min(timeit.repeat(partial(run, executor, plan), number=1, repeat=_TIMED_RUNS))


def run(executor: Executor, plan: ForwardPlan) -> None:
    """Run a forward to its end."""
    executor.launch(plan).wait()
