"""Steps of the packed path between stock batches."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sglang_prefill_ext.border.scheduler import scheduler_hooks
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.policy import policy_of
from sglang_prefill_ext.scheduling.runtime import PackedRuntime
from tests.unit.border.scheduler.stub_scheduler import CONFIG, Answers, Scheduler
from tests.unit.scheduling.caches import MemoryCache
from tests.unit.scheduling.jobs import IdleExecutor, request


def test_the_profiler_and_kv_events_see_every_count_of_forwards(
    scheduler: Scheduler, runtime: PackedRuntime
) -> None:
    runtime.submit("other", request([], [9]).pack(), None)
    batch, nothing = SimpleNamespace(reqs=[]), SimpleNamespace(batch_to_run=None)
    for _ in range(3):
        scheduler_hooks.step_then_next_batch(lambda *_args: nothing, scheduler, batch, None)
    assert scheduler.profiled == [(1, "EXTEND"), (2, "EXTEND")]
    assert scheduler.published_behind == [1, 2]


@pytest.mark.parametrize("aborted", [False, True])
def test_what_a_divided_request_held_is_offered_to_prompts_again(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, aborted: bool
) -> None:
    policy = policy_of(CONFIG, ForwardBudget(10), launch_tokens=1)
    runtime = PackedRuntime(IdleExecutor(), answers, policy, cache=MemoryCache())
    scheduler = Scheduler(runtime, answers, monkeypatch)

    def admitted() -> bool:
        """Whether SGLang looks at its waiting prompts again."""
        batch = SimpleNamespace(reqs=[], batch_is_full=True)
        nothing = SimpleNamespace(batch_to_run=None)
        scheduler_hooks.step_then_next_batch(lambda *_args: nothing, scheduler, batch, None)
        return not batch.batch_is_full

    runtime.submit("short", request([1, 2], [3]).pack(), None)
    runtime.submit("divided", request([*range(25)], [9]).pack(), None)
    assert [admitted() for _ in range(3)] == [False] * 3
    assert runtime.holders
    if aborted:
        runtime.abort("divided")
    assert [admitted() for _ in range(2)] == [True, False]
    assert not runtime.holders


@pytest.mark.parametrize("beside", ["nothing", "generation", "prefilled", "waiting"])
def test_only_beside_stock_requests_is_it_collected_for_want_of_slots(
    scheduler: Scheduler, runtime: PackedRuntime, answers: Answers, beside: str
) -> None:
    batch = SimpleNamespace(reqs=[0] * (beside == "generation"), batch_is_full=False)
    last_batch = batch if beside == "prefilled" else None
    scheduler.waiting_queue = [0] * (beside == "waiting")
    runtime.submit("next", request([], [9]).pack(), None)
    nothing = SimpleNamespace(batch_to_run=None)
    scheduler_hooks.step_then_next_batch(lambda *_args: nothing, scheduler, batch, last_batch)
    assert answers == (["job"] if beside == "nothing" else ["job", "next"])


@pytest.mark.parametrize("beside", ["nothing", "prefilled", "waiting"])
def test_beside_stock_requests_no_forward_waits(
    scheduler: Scheduler, runtime: PackedRuntime, monkeypatch: pytest.MonkeyPatch, beside: str
) -> None:
    monkeypatch.setattr(PackedRuntime, "may_wait", True)
    batch = SimpleNamespace(reqs=[], batch_is_full=False)
    scheduler.waiting_queue = [0] * (beside == "waiting")
    runtime.submit("next", request([], [9]).pack(), None)
    nothing = SimpleNamespace(batch_to_run=None)
    last_batch = batch if beside == "prefilled" else None
    scheduler_hooks.step_then_next_batch(lambda *_args: nothing, scheduler, batch, last_batch)
    assert len(runtime.queue) == (beside == "nothing")
