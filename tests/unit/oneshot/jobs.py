"""Jobs and an executor that computes nothing, for tests of what is decided about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np

from sglang_prefill_ext.oneshot.admission import load_of
from sglang_prefill_ext.oneshot.budget import ForwardBudget
from sglang_prefill_ext.oneshot.job import Job
from sglang_prefill_ext.oneshot.planner import ForwardPlan
from sglang_prefill_ext.oneshot.split import split_request
from sglang_prefill_ext.wire.packed import Float32Array
from tests.unit.wire.strategies import PlainRequest

_numbers = count()


def request(prefix: Sequence[int] = (), *suffixes: Sequence[int]) -> PlainRequest:
    """Rows that are asked for label 1; one row of one token unless given."""
    rows = [list(suffix) for suffix in suffixes] or [[9]]
    return PlainRequest(list(prefix), rows, [[1]] * len(rows), shared_labels=True)


def job_of(plain: PlainRequest, budget: int = 100, **options: Any) -> Job:
    """A job that came after all jobs that were made before."""
    rows, number = plain.pack(), next(_numbers)
    pieces = split_request(rows, ForwardBudget(budget))
    arrived = load_of(rows)
    return Job(f"job-{number}", rows, number=number, arrived=arrived, pieces=pieces, **options)


class IdleExecutor:
    """Answers zeros; `on_launch` sees every plan."""

    asynchronous = False
    causal = True
    longest_prompt = None
    vector_width = 0

    def __init__(self, on_launch: Callable[[ForwardPlan], None] = lambda plan: None) -> None:
        self._on_launch = on_launch

    def launch(
        self, plan: ForwardPlan, held: Sequence[Any], stores: Sequence[Any]
    ) -> _IdleCompletion:
        self._on_launch(plan)
        return _IdleCompletion(plan)


class _IdleCompletion:
    def __init__(self, plan: ForwardPlan) -> None:
        self.held = [None] * len(plan.hold)
        self._num_values = plan.num_values

    def wait(self) -> Float32Array:
        return np.zeros(self._num_values, dtype=np.float32)
