from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.oneshot.job import Job, JobResult, JobStatus
from sglang_prefill_ext.oneshot.planner import plan_forwards
from tests.unit.wire.strategies import PlainRequest, plain_requests


@given(plain_requests(), st.integers(5, 20), st.data())
def test_waiting_tokens_are_those_of_the_forwards_not_launched(
    request: PlainRequest, budget: int, data: st.DataObject
) -> None:
    rows = request.pack()
    job = Job("r", rows, plan_forwards(rows, budget), arrival_s=0.0)
    assert job.waiting_tokens == request.num_tokens
    job.next_plan = data.draw(st.integers(0, len(job.plans)))
    done = sum(len(plan.token_ids) for plan in job.plans[: job.next_plan])
    assert job.waiting_tokens == request.num_tokens - done
    assert job.launched == (job.next_plan == len(job.plans))
    assert job.launched == (job.waiting_tokens == 0)


def test_jobs_are_told_apart_by_identity() -> None:
    rows = PlainRequest([], [[1]], [[2]], shared_labels=True).pack()
    first, second = (Job("r", rows, (), arrival_s=0.0) for _ in range(2))
    assert first != second


def test_a_result_without_values_is_empty() -> None:
    result = JobResult("r", JobStatus.DECLINED, "why")
    assert (result.values, result.forwards, result.tokens_computed) == (b"", 0, 0)


def test_a_status_travels_as_its_word() -> None:
    assert json.dumps([*JobStatus]) == '["ok", "aborted", "declined", "failed"]'
