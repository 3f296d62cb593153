"""Requests with equal tokens and different adapters share nothing that an adapter computes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sglang_prefill_ext.scheduling.job import Job
from sglang_prefill_ext.scheduling.prefixed_forward import PrefixedForward
from sglang_prefill_ext.scheduling.row_transactions import RowRoom
from sglang_prefill_ext.scheduling.runtime import PackedRuntime
from tests.unit.scheduling.caches import MemoryCache
from tests.unit.scheduling.jobs import IdleExecutor, first_come, job_of, request
from tests.unit.wire.strategies import PlainRequest

LONG = request(range(200), [7], [8], [9])
"""Needs several forwards."""
ROWS = request([1], *[[row] * 20 for row in (5, 6, 7)])
POLICY = first_come(64, launch_tokens=0)


def computed(cache: MemoryCache, *requests: PlainRequest) -> list[int]:
    """Tokens computed for each request, one after the other."""
    plans: list[int] = []
    executor = IdleExecutor(lambda plan: plans.append(plan.num_tokens))
    runtime = PackedRuntime(executor, lambda ended: None, POLICY, cache=cache)
    tokens = []
    for number, each in enumerate(requests):
        runtime.submit(f"job-{number}", each.pack(), None)
        while runtime.busy:
            runtime.step()
        tokens.append(sum(plans) - sum(tokens))
    cache.check_idle()
    return tokens


def test_a_prefix_longer_than_a_forward_is_found_with_its_adapter_alone() -> None:
    cache, names = MemoryCache(), ["a", "b", "a", "b", ""]
    tokens = computed(cache, *(replace(LONG, adapter=name) for name in names))
    assert tokens == [203, 203, 3, 3, 203]
    assert cache.adapters == names


def test_rows_that_return_are_found_with_their_adapter_alone() -> None:
    cache, names = MemoryCache(), ["a", "a", "a", "b", "b", "b"]
    tokens = computed(cache, *(replace(ROWS, adapter=name) for name in names))
    # First the shared prefix is cached, then the rows, and then all but their last tokens is.
    assert tokens[3:] == tokens[:3]
    assert tokens[0] == ROWS.num_tokens > tokens[1] > tokens[2]
    assert cache.adapters[len(cache.adapters) // 2 :] == ["b"] * (len(cache.adapters) // 2)


def returning(adapter: str) -> Job:
    """A job whose rows came before, each up to its last token."""
    return job_of(replace(ROWS, adapter=adapter), rows_seen=np.array([20] * 3))


@pytest.mark.parametrize("cached", [False, True])
def test_rows_of_one_forward_have_the_groups_of_their_adapter(cached: bool) -> None:
    cache, names = MemoryCache(), ["a", "b"]
    for _ in range(3 if cached else 2):  # the prefix, and then the rows
        cache.adapters.clear()
        prefixed = PrefixedForward([*map(returning, names)], cache, RowRoom(200))
        prefixed.commit()
    assert prefixed.plan.adapters == ("a",) * 3 + ("b",) * 3
    assert cache.adapters == ["a", "b"] + ["a"] * 3 + ["b"] * 3
    groups = prefixed.plan.layout.groups
    assert [(group.held, group.fresh) for group in groups] == [(20, 0) if cached else (1, 19)] * 6
