from __future__ import annotations

from sglang_prefill_ext.scheduling.launched_forward import LaunchedJob
from sglang_prefill_ext.scheduling.planner import Share
from tests.unit.scheduling.jobs import job_of, request


def test_a_job_leaves_a_flight_by_ending_or_by_starting_over() -> None:
    first, second = (job_of(request()) for _ in range(2))
    launched_jobs = [
        LaunchedJob(job, job.attempt, Share(0, slice(0, 1), 1)) for job in (first, second)
    ]
    assert all(each.waits for each in launched_jobs)
    first.ended = True
    second.restart()
    assert not any(each.waits for each in launched_jobs)
