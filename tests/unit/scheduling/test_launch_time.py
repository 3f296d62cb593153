from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.scheduling.launch_time import LaunchTime


def measured(host_s: float, s_per_token: float, count: int = 50) -> LaunchTime:
    time = LaunchTime()
    for cost in range(1, count):
        time.record_launch(host_s)
        time.record_forward(100 * cost, 100 * cost * s_per_token)
    return time


def test_nothing_is_early_before_a_forward_was_measured() -> None:
    time = LaunchTime()
    assert not time.is_early(1 << 20, 0.0)
    time.record_launch(0.001)
    assert not time.is_early(1 << 20, 0.0)


@given(
    cost=st.integers(1, 100_000),
    host_s=st.floats(1e-4, 1e-2),
    s_per_token=st.floats(1e-7, 1e-3),
    share=st.floats(0, 2),
)
def test_it_is_early_while_the_device_needs_longer_than_the_host(
    cost: int, host_s: float, s_per_token: float, share: float
) -> None:
    time, device_s = measured(host_s, s_per_token), cost * s_per_token
    left_s = (1 - share) * device_s
    if left_s < host_s:
        assert not time.is_early(cost, share * device_s)
    if left_s > 2 * host_s:
        assert time.is_early(cost, share * device_s)


def test_recent_forwards_and_launches_count_more() -> None:
    time = measured(host_s=0.001, s_per_token=1e-5)
    assert time.is_early(1000, 0.0)  # 10 ms
    for _ in range(200):
        time.record_forward(100_000, 0.1)  # now a tenth of that
    assert not time.is_early(1000, 0.0)
    assert time.is_early(10_000, 0.0)
    for _ in range(200):
        time.record_launch(0.02)
    assert not time.is_early(10_000, 0.0)


def test_one_slow_launch_changes_the_mean_little() -> None:
    time = measured(host_s=0.001, s_per_token=1e-5)
    time.record_launch(0.01)
    assert time.is_early(400, 0.0)  # 4 ms
    assert not time.is_early(300, 0.0)
