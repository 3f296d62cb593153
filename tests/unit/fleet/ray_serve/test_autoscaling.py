from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.fleet.ray_serve.autoscaling import TOKENS, OutstandingTokens

LOADS = st.lists(st.integers(0, 10**9), min_size=1, max_size=50)
TARGETS = st.integers(1, 10**7)


def wanted(outstanding: list[int], target: int, current: int) -> int:
    told = {TOKENS: dict(enumerate(outstanding)), "other": {0: 1e9}}
    context = SimpleNamespace(aggregated_metrics=told, target_num_replicas=current)
    number, state = OutstandingTokens(target)(context)
    assert not state
    return number


@given(LOADS, TARGETS)
def test_no_engine_has_more_than_the_target_and_with_one_fewer_some_would(
    outstanding: list[int], target: int
) -> None:
    engines = wanted(outstanding, target, 7)
    assert engines * target >= sum(outstanding)
    assert engines == 1 or (engines - 1) * target < sum(outstanding)


def test_while_none_reports_the_number_stays() -> None:
    assert wanted([], 100, 3) == 3
    context = SimpleNamespace(aggregated_metrics={}, target_num_replicas=2)
    assert OutstandingTokens(target_tokens=100)(context) == (2, {})
