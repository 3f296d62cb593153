"""A scheduler with a forward in flight."""

from __future__ import annotations

import pytest

from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.policy import policy_of
from sglang_prefill_ext.scheduling.runtime import PackedRuntime
from tests.unit.border.scheduler.stub_scheduler import CONFIG, Answers, Scheduler
from tests.unit.scheduling.jobs import IdleExecutor, request


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def runtime(answers: Answers) -> PackedRuntime:
    """A runtime with a forward in flight."""
    executor = IdleExecutor()
    executor.asynchronous = True
    runtime = PackedRuntime(
        executor, answers, policy_of(CONFIG, ForwardBudget(10), launch_tokens=1)
    )
    runtime.submit("job", request([], [9]).pack(), None)
    runtime.step()
    assert runtime.in_flight == 1
    return runtime


@pytest.fixture
def scheduler(
    runtime: PackedRuntime, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> Scheduler:
    return Scheduler(runtime, answers, monkeypatch)
