"""An executor that fails when it is told to, and prefixes for what it is asked."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sglang_prefill_ext.scheduling.planner import ForwardPlan
from sglang_prefill_ext.wire.arrays import Float32Array
from tests.unit.scheduling.jobs import first_come

PREFIX, LARGE = list(range(20)), list(range(200))
JOINING = first_come(64, launch_tokens=1000)


@dataclass
class FailingExecutor:
    """Answers zeros; launches and waits of given numbers (from 1) fail."""

    asynchronous: bool = False
    causal: bool = True
    failing_launches: frozenset[int] = frozenset()
    failing_waits: frozenset[int] = frozenset()
    plans: list[ForwardPlan] = field(default_factory=list)

    def launch(self, plan: ForwardPlan) -> _FailingCompletion:
        assert len(plan.held) == len(plan.stores) == len(plan.layout.groups)
        for group, held in zip(plan.layout.groups, plan.held, strict=True):
            assert group.held == (0 if held is None else len(held)), "a slot for every held token"
        self.plans.append(plan)
        if len(self.plans) in self.failing_launches:
            raise MemoryError("out of memory")
        return _FailingCompletion(plan, fails=len(self.plans) in self.failing_waits)


class _FailingCompletion:
    def __init__(self, plan: ForwardPlan, *, fails: bool) -> None:
        self._num_values, self._fails = plan.reads.num_values, fails

    def wait(self) -> Float32Array:
        if self._fails:
            raise RuntimeError("device lost")
        return np.zeros(self._num_values, dtype=np.float32)
