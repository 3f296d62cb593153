from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.failures import jobs_with_nan
from sglang_prefill_ext.scheduling.job import Job
from sglang_prefill_ext.scheduling.launches import LaunchedJob
from sglang_prefill_ext.scheduling.planner import JobShare
from tests.unit.scheduling.jobs import job_of, job_of_rows, request

VALUES = np.array([-1.5, -np.inf, np.nan, -2.5, np.nan], dtype=np.float32)
"""Of a job that knows an impossible label, of one with NaN, and of one with both kinds of number.
"""


def launched(job: Job, places: slice | list[int]) -> LaunchedJob:
    values = places if isinstance(places, slice) else np.array(places)
    return LaunchedJob(job, job.attempt, JobShare(values, 1))


@pytest.mark.parametrize("shared", [False, True])
def test_jobs_with_nan_are_found_and_those_with_infinity_are_not(shared: bool) -> None:
    jobs = [job_of(request()) for _ in range(4)]
    places = [slice(0, 2), slice(2, 3), [4, 3], [0, 3]]
    parts = [launched(*each) for each in zip(jobs, places, strict=True)]
    assert jobs_with_nan(parts, VALUES, shared=shared) == jobs[1:3]


def test_a_lone_job_with_embeddings_of_its_own_is_answered_with_its_nan() -> None:
    rows = replace(request().pack(), overrides=np.ones((1, 4), np.float32))
    parts = [launched(job_of_rows(rows, ForwardBudget(9)), slice(2, 3))]
    assert jobs_with_nan(parts, VALUES, shared=True) == [parts[0].job]
    assert jobs_with_nan(parts, VALUES, shared=False) == []
