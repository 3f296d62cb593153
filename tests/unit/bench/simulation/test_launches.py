from __future__ import annotations

import time

import pytest

from bench.simulation.launches import IN_TIME, WAITS, LaunchOutcome, simulate_launches
from bench.simulation.traffic import CostModel, draw_traffic

COST = CostModel(launch_ms=3.0)


def outcome(way: str, load: float, host_ms: float = 1.0) -> LaunchOutcome:
    return simulate_launches(way, draw_traffic(load, 1500, COST, 0), COST, host_ms, 0)


@pytest.mark.parametrize("way", [WAITS, IN_TIME])
def test_a_request_alone_takes_launch_and_forward(way: str) -> None:
    found = outcome(way, load=0.001)
    assert 1.0 < found.mean_slowdown < 1.0 + 1.1 / COST.forward_ms(128)
    assert found.p99_ms < 1.1 + 1.3 * COST.forward_ms(8192)
    assert found.requests_per_forward == pytest.approx(1, abs=0.01)
    assert found.busy < 0.01


def test_requests_that_gather_for_a_launch_in_time_share_more_forwards() -> None:
    waits, in_time = outcome(WAITS, 0.8, host_ms=4.0), outcome(IN_TIME, 0.8, host_ms=4.0)
    assert in_time.requests_per_forward > waits.requests_per_forward
    assert in_time.mean_slowdown < waits.mean_slowdown


def test_the_real_clock_is_put_back() -> None:
    outcome(IN_TIME, load=0.5)
    from sglang_prefill_ext.scheduling import forwards, runtime

    assert forwards.time is runtime.time is time
