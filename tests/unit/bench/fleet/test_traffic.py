from __future__ import annotations

import numpy as np
import pytest

from bench.fleet.traffic import MEAN_TOKENS, SCENARIOS, WORKLOADS, draw_traffic


def test_items_are_as_long_as_is_said() -> None:
    traffic = draw_traffic("60+576x16..400", SCENARIOS["usual"], 0.5, 8, 300, 0)
    counts = [len(each) for each in traffic.requests]
    assert min(counts) >= 16
    assert max(counts) <= 400
    lens = np.concatenate([each.tokens for each in traffic.requests])
    assert lens.mean() == pytest.approx(MEAN_TOKENS, rel=0.02)
    assert {each.prefix_tokens for each in traffic.requests} == {60}


@pytest.mark.parametrize("scenario", ["usual", "half speed"])
def test_load_is_work_by_capacity(scenario: str) -> None:
    traffic = draw_traffic("50+150x50", SCENARIOS[scenario], 0.7, 4, 5000, 0)
    capacity = 4 if scenario == "usual" else 3.5
    offered = traffic.whole_s.sum() / traffic.arrival_s[-1]
    assert offered / capacity == pytest.approx(0.7, rel=0.05)


def test_a_burst_comes_faster_in_the_middle() -> None:
    usual, burst = (
        np.diff(draw_traffic("120+180x10", SCENARIOS[each], 0.5, 8, 1000, 0).arrival_s)
        for each in ("usual", "burst")
    )
    np.testing.assert_allclose(usual[500] / burst[500], 3)
    np.testing.assert_allclose(usual[100], burst[100])


@pytest.mark.parametrize("workload", WORKLOADS)
def test_traffic_is_the_same_again(workload: str) -> None:
    first, second = (
        draw_traffic(workload, SCENARIOS["usual"], 0.5, 8, 30, seed) for seed in (3, 3)
    )
    np.testing.assert_array_equal(first.arrival_s, second.arrival_s)
    np.testing.assert_array_equal(first.whole_s, second.whole_s)
