from __future__ import annotations

from sglang_prefill_ext.scheduling.launched_forward import Passenger
from sglang_prefill_ext.scheduling.planner import Share
from tests.unit.scheduling.jobs import job_of, request


def test_a_job_leaves_a_flight_by_ending_or_by_starting_over() -> None:
    first, second = (job_of(request()) for _ in range(2))
    riders = [Passenger(job, job.attempt, Share(0, slice(0, 1), 1)) for job in (first, second)]
    assert all(rider.aboard for rider in riders)
    first.ended = True
    second.restart()
    assert not any(rider.aboard for rider in riders)
