"""The queue is compared with a plain list that is sorted at every access."""

from __future__ import annotations

import math
import time
from functools import reduce
from operator import add

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.scheduling.budget import QueueLoad, refusal, retry_after_s
from sglang_prefill_ext.scheduling.job import Job
from sglang_prefill_ext.scheduling.queue import JobQueue, OrderKey
from tests.unit.scheduling.jobs import job_of, request


def _key(job: Job) -> OrderKey:
    return (job.priority,)


JOBS = [job_of(request(range(number)), priority=number % 3) for number in range(6)]


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(JOBS)), max_size=30))
def test_the_queue_behaves_like_a_sorted_list(calls: list[tuple[bool, Job]]) -> None:
    queue, expected = JobQueue(_key), list[Job]()
    for is_push, job in calls:
        if not is_push:
            queue.drop(job)
            expected = [other for other in expected if other is not job]
        elif job not in expected:
            queue.push(job)
            expected.append(job)
        expected.sort(key=lambda job: (job.priority, job.number))
        assert len(queue) == len(expected)
        assert list(queue) == expected
        assert queue.load == reduce(add, (job.load for job in expected), QueueLoad())


def test_the_oldest_wait_is_known_without_a_look_at_every_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 10.0)
    monkeypatch.delattr(JobQueue, "__iter__")
    queue = JobQueue(_key)
    assert queue.oldest_wait_s == 0.0
    later, oldest, same = jobs = [job_of(request(), arrival_s=each) for each in (5.0, 3.0, 3.0)]
    for job in jobs:
        queue.push(job)
    assert queue.oldest_wait_s == 7.0
    queue.drop(oldest)
    assert queue.oldest_wait_s == 7.0
    queue.drop(same)
    queue.drop(same)
    assert queue.oldest_wait_s == 5.0
    queue.drop(later)
    assert queue.oldest_wait_s == 0.0


def test_what_changes_while_a_job_is_out_counts_when_it_is_back() -> None:
    queue = JobQueue(_key)
    job, other = job_of(request([1] * 6), budget=4), job_of(request())
    queue.push(job)
    queue.push(other)
    job.priority, job.next_piece = 5, 1
    assert queue.begun is None
    queue.drop(job)
    queue.push(job)
    assert list(queue) == [other, job]
    assert queue.begun is job
    assert queue.load.tokens == 1 + job.remaining_tokens
    queue.drop(other)
    assert queue.begun is job
    queue.push(other)
    queue.drop(job)
    assert queue.begun is None
    assert queue.load == other.load


@pytest.mark.parametrize(
    ("now_ms", "tokens_per_s", "late"),
    [
        (0.0, math.inf, []),
        (1_000.0, math.inf, []),
        (1_001.0, math.inf, ["soon"]),
        (500.0, 10.0, []),  # five tokens take half a second
        (501.0, 10.0, ["soon"]),
        (1_501.0, 10.0, ["soon", "later"]),
    ],
)
def test_a_job_is_late_once_its_own_tokens_take_too_long(
    now_ms: float, tokens_per_s: float, late: list[str]
) -> None:
    queue = JobQueue(_key)
    for rid, deadline_ms in (("soon", 1_000.0), ("later", 2_000.0), ("never", None)):
        job = job_of(request([1, 2, 3, 4]), deadline_ms=deadline_ms)
        job.rid = rid
        queue.push(job)
    gone = job_of(request(), deadline_ms=0.0)
    queue.push(gone)
    queue.drop(gone)
    assert [job.rid for job in queue.late(now_ms, tokens_per_s)] == late


LOADS = st.builds(QueueLoad, *[st.integers(0, 20)] * 3)
LIMITS = st.builds(QueueLoad, *[st.integers(1, 20)] * 3)


@given(LOADS, LOADS, LIMITS)
def test_a_request_is_refused_where_any_limit_would_be_passed(
    waiting: QueueLoad, request: QueueLoad, limits: QueueLoad
) -> None:
    pairs = [
        (waiting.tokens + request.tokens, limits.tokens),
        (waiting.rows + request.rows, limits.rows),
        (waiting.bytes + request.bytes, limits.bytes),
    ]
    fits = all(after <= most for after, most in pairs) or waiting == QueueLoad()
    assert (refusal(limits, waiting, request) == "") == fits


def test_what_waits_may_reach_the_limits_and_the_first_may_exceed_them() -> None:
    limits = QueueLoad(tokens=100, rows=5, bytes=1000)
    assert refusal(limits, QueueLoad(1, 1, 1), QueueLoad(99, 4, 999)) == ""
    assert refusal(limits, QueueLoad(), QueueLoad(101, 6, 1001)) == ""


def test_a_refusal_names_what_is_full() -> None:
    limits = QueueLoad(tokens=100, rows=5, bytes=1000)
    reason = refusal(limits, QueueLoad(10, 4, 10), QueueLoad(10, 2, 10))
    assert "6 rows would wait, the limit is 5" in reason
    assert reason.endswith("Try again later.")


@given(LOADS, LOADS)
def test_what_is_taken_away_again_leaves_what_was_there(one: QueueLoad, other: QueueLoad) -> None:
    assert one + other - other == one


@pytest.mark.parametrize(("rate", "seconds"), [(50.0, 2.0), (0.0, 0.0)])
def test_room_is_expected_once_what_waits_is_computed(rate: float, seconds: float) -> None:
    assert retry_after_s(QueueLoad(tokens=100), rate) == seconds
