from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.scheduling.launches import LaunchedJob, LaunchTime
from sglang_prefill_ext.scheduling.planner import JobShare
from tests.unit.scheduling.jobs import job_of, request


class Measured:
    """A `LaunchTime` after some forwards, each launched when the one before was done."""

    def __init__(self, host_s: float, s_per_token: float) -> None:
        self.time, self.now_s = LaunchTime(), 1.0
        for number in range(50):
            self.launch(host_s)
            self.compute(100 * (number + 1), s_per_token)

    def launch(self, host_s: float) -> None:
        self.time.launched(self.now_s - host_s, self.now_s)

    def compute(self, cost: int, s_per_token: float) -> None:
        begun_s, self.now_s = self.now_s, self.now_s + cost * s_per_token
        self.time.collected(cost, begun_s, self.now_s)

    def is_early(self, cost: int, running_s: float = 0.0) -> bool:
        return self.time.is_early(cost, self.now_s, self.now_s + running_s)


def test_nothing_is_early_before_a_forward_was_measured() -> None:
    time = LaunchTime()
    assert not time.is_early(1 << 20, 1.0, 1.0)
    time.launched(1.0, 1.001)
    assert not time.is_early(1 << 20, 1.0, 1.0)


@given(
    cost=st.integers(1, 100_000),
    host_s=st.floats(1e-4, 1e-2),
    s_per_token=st.floats(1e-7, 1e-3),
    share=st.floats(0, 2),
)
def test_it_is_early_while_the_device_needs_longer_than_the_host(
    cost: int, host_s: float, s_per_token: float, share: float
) -> None:
    measured, device_s = Measured(host_s, s_per_token), cost * s_per_token
    left_s = (1 - share) * device_s
    if left_s < host_s:
        assert not measured.is_early(cost, share * device_s)
    if left_s > 2 * host_s:
        assert measured.is_early(cost, share * device_s)


def test_a_forward_begins_when_the_one_before_is_done() -> None:
    time = LaunchTime()
    assert time.collected(100, 1.0, 3.0) == 2.0
    assert time.collected(100, 2.0, 4.0) == 1.0  # it was launched behind the first one
    assert time.is_early(100, 3.5, 5.0)  # begins at 4.0 and takes about 1.4 s
    assert not time.is_early(100, 3.5, 5.5)


def test_recent_forwards_and_launches_count_more() -> None:
    measured = Measured(host_s=0.001, s_per_token=1e-5)
    assert measured.is_early(1000)  # 10 ms
    for _ in range(200):
        measured.compute(100_000, 1e-6)  # now a tenth of that
    assert not measured.is_early(1000)
    assert measured.is_early(10_000)
    for _ in range(200):
        measured.launch(0.02)
    assert not measured.is_early(10_000)


def test_one_slow_launch_changes_the_mean_little() -> None:
    measured = Measured(host_s=0.001, s_per_token=1e-5)
    measured.launch(0.01)
    assert measured.is_early(400)  # 4 ms
    assert not measured.is_early(300)


def test_a_job_leaves_a_flight_by_ending_or_by_starting_over() -> None:
    first, second = (job_of(request()) for _ in range(2))
    launched_jobs = [
        LaunchedJob(job, job.attempt, JobShare(slice(0, 1), 1)) for job in (first, second)
    ]
    assert all(each.waits for each in launched_jobs)
    first.ended = True
    second.restart()
    assert not any(each.waits for each in launched_jobs)
