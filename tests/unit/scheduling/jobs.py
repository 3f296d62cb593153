"""Jobs, and an executor that computes nothing, for tests of scheduling decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np

from sglang_prefill_ext.config import Order
from sglang_prefill_ext.scheduling.budget import ForwardBudget, QueueLoad, load_of
from sglang_prefill_ext.scheduling.job import Job
from sglang_prefill_ext.scheduling.planner import ForwardPlan
from sglang_prefill_ext.scheduling.policy import SchedulingPolicy
from sglang_prefill_ext.scheduling.prefix_cache import PrefixCache
from sglang_prefill_ext.scheduling.prefixed_forward import PrefixedForward
from sglang_prefill_ext.scheduling.row_transactions import RowRoom
from sglang_prefill_ext.scheduling.split import split_request
from sglang_prefill_ext.wire.arrays import Float32Array
from sglang_prefill_ext.wire.packed import PackedRows
from tests.unit.wire.strategies import PlainRequest

_numbers = count()


def request(prefix: Sequence[int] = (), *suffixes: Sequence[int]) -> PlainRequest:
    """Rows that read label 1; by default one row of one token."""
    rows = [list(suffix) for suffix in suffixes] or [[9]]
    return PlainRequest(list(prefix), rows, [[1]] * len(rows), shared_labels=True)


def first_come(max_tokens: int, launch_tokens: int) -> SchedulingPolicy:
    """First come, first served; as many jobs may wait as a test sends."""
    return SchedulingPolicy(
        budget=ForwardBudget(max_tokens),
        order=Order.FCFS,
        ageing=1,
        launch_tokens=launch_tokens,
        limits=QueueLoad(tokens=10**6, rows=10**6, bytes=10**9),
    )


def job_of(plain: PlainRequest, budget: int = 100, **options: Any) -> Job:
    """A job that came after all jobs that were made before."""
    return job_of_rows(plain.pack(), ForwardBudget(budget), **options)


def job_of_rows(rows: PackedRows, budget: ForwardBudget, cached: int = 0, **options: Any) -> Job:
    """A job of these rows; if they exceed the budget, `cached` tokens of the prefix are cached."""
    number = next(_numbers)
    large = not budget.fits(len(rows.tokens), rows.num_reads)
    cached = cached if large else 0
    return Job(
        f"job-{number}",
        rows,
        number=number,
        arrived=load_of(rows),
        pieces=split_request(rows, budget, cached),
        large=large,
        cached_tokens=cached,
        **options,
    )


def run_alone(executor: Any, job: Job, cache: PrefixCache, *, most_held: int = 0) -> list[float]:
    """Compute a job, one forward after the other; its values in the order of its rows."""
    values: list[float] = []
    while not job.launched:
        prefixed = PrefixedForward([job], cache, RowRoom(most_held) if most_held else None)
        (share,) = prefixed.shares
        values += executor.launch(prefixed.plan).wait()[share.values].tolist()
        prefixed.commit()
        job.next_piece += 1
    if job.held is not None:
        job.held.commit()
    return values


class IdleExecutor:
    """Answers zeros; `on_launch` sees every plan."""

    asynchronous = False
    causal = True
    longest_prompt = None
    vector_width = 0
    vocab_size = 8_000

    def __init__(self, on_launch: Callable[[ForwardPlan], None] = lambda plan: None) -> None:
        self._on_launch = on_launch
        self.model = self

    def launch(self, plan: ForwardPlan) -> _IdleCompletion:
        self._on_launch(plan)
        return _IdleCompletion(plan)


class _IdleCompletion:
    def __init__(self, plan: ForwardPlan) -> None:
        self._num_values = plan.reads.num_values

    def wait(self) -> Float32Array:
        return np.zeros(self._num_values, dtype=np.float32)
