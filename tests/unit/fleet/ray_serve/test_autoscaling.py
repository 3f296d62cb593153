from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.fleet.ray_serve.autoscaling import TOKENS, OutstandingTokens, wanted

LOADS = st.lists(st.integers(0, 10**9), min_size=1, max_size=50)
TARGETS = st.integers(1, 10**7)


@given(LOADS, TARGETS)
def test_no_engine_has_more_than_the_target_and_with_one_fewer_some_would(
    outstanding: list[int], target: int
) -> None:
    engines = wanted(outstanding, target, 7)
    assert engines * target >= sum(outstanding)
    assert engines == 1 or (engines - 1) * target < sum(outstanding)


def test_while_none_reports_the_number_stays() -> None:
    assert wanted([], 100, 3) == 3


def test_serve_is_told_what_engines_report() -> None:
    policy = OutstandingTokens(target_tokens=100)
    told = {TOKENS: {"a": 150.0, "b": 151.0}, "other": {"a": 1e9}}
    context = SimpleNamespace(aggregated_metrics=told, target_num_replicas=2)
    assert policy(context) == (4, {})
    context.aggregated_metrics = {}
    assert policy(context) == (2, {})
