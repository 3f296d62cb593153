from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.oneshot.job import Job
from sglang_prefill_ext.oneshot.planner import plan_forwards
from sglang_prefill_ext.oneshot.queue import JobQueue
from tests.unit.wire.strategies import PlainRequest


def _job(number: int) -> Job:
    rows = PlainRequest([1] * number, [[2]], [[3]], shared_labels=True).pack()
    return Job(f"job-{number}", rows, plan_forwards(rows, 100), arrival_s=0.0)


JOBS = [_job(number) for number in range(5)]


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(JOBS)), max_size=20))
def test_the_queue_behaves_like_a_list(calls: list[tuple[bool, Job]]) -> None:
    queue, expected = JobQueue(), list[Job]()
    for is_push, job in calls:
        if not is_push:
            queue.drop(job)
            expected = [other for other in expected if other is not job]
        elif job not in expected:
            queue.push(job)
            expected.append(job)
        assert len(queue) == len(expected)
        assert queue.head() is (expected[0] if expected else None)
        assert queue.waiting_tokens == sum(job.waiting_tokens for job in expected)
        assert queue.select(lambda job: True) == expected


def test_select_keeps_the_order_and_removes_nothing() -> None:
    queue = JobQueue()
    for job in JOBS:
        queue.push(job)
    assert queue.select(lambda job: job.rid in ("job-3", "job-1")) == [JOBS[1], JOBS[3]]
    assert len(queue) == len(JOBS)
