"""Numbers beyond the model's range stay in their own request, and are never cached."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from sglang_prefill_ext.scheduling.planner import ForwardPlan
from sglang_prefill_ext.scheduling.runtime import Ended, PackedRuntime
from tests.unit.forward.overflowing import HUGE, PREFIX, Overflow, assert_spoils_nobody, rows
from tests.unit.scheduling.caches import MemoryCache
from tests.unit.scheduling.failing import JOINING, FailingExecutor

pytestmark = pytest.mark.usefixtures("no_log")

each_dtype = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
each_prefix = pytest.mark.parametrize("prefix", [PREFIX, []], ids=["shared-prefix", "no-prefix"])


@each_dtype
@each_prefix
def test_an_embedding_beyond_the_range_spoils_nobody(dtype: torch.dtype, prefix: list[int]) -> None:
    """It also makes no other request wait for another forward."""
    together = assert_spoils_nobody(rows(prefix, [40, -1, 41], [42]), dtype)
    assert together.runtime.stats.retried_forwards == 1
    assert together.forwards == 3


@each_dtype
@each_prefix
def test_a_prompt_beyond_the_range_spoils_nobody(dtype: torch.dtype, prefix: list[int]) -> None:
    """It shares a tile with another request, which is computed again alone."""
    together = assert_spoils_nobody(rows(prefix, [40, HUGE, 41], [42]), dtype)
    assert together.runtime.stats.retried_forwards == 1


@each_dtype
def test_a_prefix_beyond_the_range_is_never_kept(dtype: torch.dtype) -> None:
    overflow = Overflow(dtype)
    for _ in range(2):
        overflow.serve(rows([1, 2, HUGE, 3], [4], [5]))
    assert set(overflow.statuses.values()) == {"not_finite"}
    assert overflow.cache.outcomes == ["rollback", "rollback"]
    assert not overflow.cache.committed


@pytest.mark.parametrize("value", [-np.inf, np.inf])
def test_infinity_is_an_answer(value: float) -> None:
    """A token of probability 0 has a log-prob of minus infinity."""

    class Infinite(FailingExecutor):
        def launch(self, plan: ForwardPlan) -> Any:
            values = np.full(plan.reads.num_values, value, dtype=np.float32)
            return SimpleNamespace(wait=lambda: values)

    ended: list[Ended] = []
    runtime = PackedRuntime(Infinite(), ended.extend, JOINING, cache=(cache := MemoryCache()))
    runtime.submit("job", rows(PREFIX, [1], [2]), None)
    runtime.step()
    ((_, result),) = ended
    assert result.status == "ok"
    assert result.row_values().tolist() == [value] * 4
    assert cache.outcomes == ["commit"]
