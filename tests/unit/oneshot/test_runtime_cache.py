"""What the runtime does with the prefix cache: when transactions begin, and how they end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.config import Order
from sglang_prefill_ext.oneshot import forwards
from sglang_prefill_ext.oneshot.admission import QueueLimits
from sglang_prefill_ext.oneshot.budget import ForwardBudget
from sglang_prefill_ext.oneshot.job import JobStatus
from sglang_prefill_ext.oneshot.planner import ForwardPlan
from sglang_prefill_ext.oneshot.policy import SchedulingPolicy
from sglang_prefill_ext.oneshot.runtime import Ended, PackedRuntime
from sglang_prefill_ext.wire.packed import Float32Array
from tests.unit.oneshot.caches import MemoryCache
from tests.unit.oneshot.jobs import request

PREFIX = list(range(20))
JOINING = SchedulingPolicy(
    budget=ForwardBudget(64),
    order=Order.FCFS,
    ageing=1,
    launch_tokens=1000,
    limits=QueueLimits(tokens=10**6, rows=10**6, bytes=10**9),
)
ALONE = replace(JOINING, launch_tokens=0)

each_place = pytest.mark.parametrize("place", ["failing_launches", "failing_waits"])


@pytest.fixture(autouse=True, scope="module")
def _no_log() -> Iterator[None]:
    forwards.logger.disabled = True
    yield
    forwards.logger.disabled = False


@dataclass
class FailingExecutor:
    """Answers zeros; launches and waits of given numbers (from 1) fail."""

    asynchronous: bool = False
    causal: bool = True
    failing_launches: frozenset[int] = frozenset()
    failing_waits: frozenset[int] = frozenset()
    plans: list[ForwardPlan] = field(default_factory=list)

    def launch(
        self, plan: ForwardPlan, held: Sequence[Any], stores: Sequence[Any]
    ) -> FailingCompletion:
        assert len(held) == len(stores) == len(plan.layout.groups)
        self.plans.append(plan)
        if len(self.plans) in self.failing_launches:
            raise MemoryError("out of memory")
        return FailingCompletion(plan, fails=len(self.plans) in self.failing_waits)


class FailingCompletion:
    def __init__(self, plan: ForwardPlan, *, fails: bool) -> None:
        self.held = [object() if hold else None for hold in plan.hold]
        self._num_values, self._fails = plan.num_values, fails

    def wait(self) -> Float32Array:
        if self._fails:
            raise RuntimeError("device lost")
        return np.zeros(self._num_values, dtype=np.float32)


class Setup:
    """A runtime with a cache, and its answers by request id, in order."""

    def __init__(
        self,
        executor: FailingExecutor,
        cache: MemoryCache | None = None,
        policy: SchedulingPolicy = JOINING,
    ) -> None:
        self.cache = MemoryCache() if cache is None else cache
        self.executor = executor
        self.answers: dict[str, JobStatus] = {}
        self.tokens_cached: list[int] = []
        self.runtime = PackedRuntime(executor, self._answer, policy, cache=self.cache)

    def _answer(self, ended: Sequence[Ended]) -> None:
        for job, result in ended:
            assert job.rid not in self.answers
            self.answers[job.rid] = JobStatus(result.status)
            self.tokens_cached.append(result.tokens_cached)

    def submit(self, *prefixes: list[int]) -> None:
        for prefix in prefixes:
            rid = f"job-{len(self.answers) + self.runtime.waiting_jobs + self.runtime.in_flight}"
            self.runtime.submit(rid, request(prefix).pack(), None)

    def finish(self) -> None:
        while self.runtime.busy:
            self.runtime.step()

    @property
    def committed(self) -> set[tuple[int, ...]]:
        return set(self.cache.committed)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_forward_commits_when_it_has_succeeded(asynchronous: bool) -> None:
    setup = Setup(FailingExecutor(asynchronous))
    setup.submit(PREFIX)
    setup.runtime.step()
    assert setup.cache.outcomes == ([""] if asynchronous else ["commit"])
    assert setup.committed == (set() if asynchronous else {tuple(PREFIX)})
    setup.finish()
    assert setup.cache.outcomes == ["commit"]
    setup.submit(PREFIX)
    setup.finish()
    assert [plan.num_tokens for plan in setup.executor.plans] == [21, 1]
    stats = setup.runtime.stats
    assert (stats.tokens_computed, stats.tokens_cached, stats.tokens_saved) == (22, 20, 20)
    assert setup.tokens_cached == [0, 20]


def test_cached_tokens_make_a_request_shorter() -> None:
    executor = FailingExecutor()
    setup = Setup(executor, policy=replace(ALONE, order=Order.SRPT))
    setup.submit(PREFIX)
    setup.finish()
    setup.submit(PREFIX[::-1], PREFIX)
    setup.finish()
    assert [plan.token_ids[0] for plan in executor.plans] == [PREFIX[0], 9, PREFIX[-1]]


@pytest.mark.parametrize("asynchronous", [False, True])
@each_place
def test_a_failed_forward_leaves_nothing_behind(asynchronous: bool, place: str) -> None:
    setup = Setup(FailingExecutor(asynchronous))
    setattr(setup.executor, place, frozenset([1]))
    setup.submit(PREFIX)
    setup.finish()
    assert setup.answers == {"job-0": JobStatus.FAILED}
    assert setup.cache.outcomes == ["rollback"]
    assert not setup.committed


@each_place
def test_jobs_that_run_alone_after_a_failure_begin_anew(place: str) -> None:
    setup = Setup(FailingExecutor())
    setattr(setup.executor, place, frozenset([1]))
    setup.submit(PREFIX, PREFIX)
    setup.finish()
    assert set(setup.answers.values()) == {JobStatus.OK}
    assert setup.cache.outcomes == ["rollback", "commit", "commit"]
    assert [plan.num_tokens for plan in setup.executor.plans] == [22, 21, 1]


def test_a_cache_that_cannot_begin_fails_like_a_launch() -> None:
    setup = Setup(FailingExecutor(), MemoryCache(failing_begins=frozenset([2])))
    setup.submit(PREFIX, PREFIX[::-1])
    setup.finish()
    assert set(setup.answers.values()) == {JobStatus.OK}
    assert setup.cache.outcomes == ["rollback", "commit", "commit"]


def test_what_an_aborted_job_has_computed_is_committed() -> None:
    setup = Setup(FailingExecutor(asynchronous=True))
    setup.submit(PREFIX)
    setup.runtime.step()
    setup.runtime.abort("job-0")
    setup.finish()
    assert setup.answers == {"job-0": JobStatus.ABORTED}
    assert setup.committed == {tuple(PREFIX)}


@pytest.mark.parametrize(
    ("launch_tokens", "forwards"),
    [(0, [21, 1]), (19, [21, 1]), (20, [21, 21])],
    ids=["waits", "barely_waits", "short_prefix"],
)
def test_who_would_compute_what_a_forward_in_flight_stores_waits_for_it(
    launch_tokens: int, forwards: list[int]
) -> None:
    policy = replace(JOINING, launch_tokens=launch_tokens)
    setup = Setup(FailingExecutor(asynchronous=True), policy=policy)
    for _ in range(2):
        setup.submit(PREFIX)
        setup.runtime.step()
    assert [plan.num_tokens for plan in setup.executor.plans] == forwards
    setup.finish()
    assert set(setup.answers.values()) == {JobStatus.OK}


def test_nobody_waits_for_what_is_not_stored() -> None:
    setup = Setup(FailingExecutor(asynchronous=True), MemoryCache(keeps=False), ALONE)
    for prefix in (PREFIX, PREFIX, PREFIX[::-1]):
        setup.submit(prefix)
        setup.runtime.step()
        assert setup.runtime.in_flight == 1
    assert [plan.num_tokens for plan in setup.executor.plans] == [21, 21, 21]
    assert setup.cache.outcomes == ["commit", "commit", ""]


def test_a_follower_computes_the_prefix_itself_if_its_leader_fails() -> None:
    executor = FailingExecutor(asynchronous=True, failing_waits=frozenset([1]))
    setup = Setup(executor, policy=ALONE)
    for _ in range(2):
        setup.submit(PREFIX)
        setup.runtime.step()
    assert setup.cache.outcomes == ["rollback", ""]
    setup.finish()
    assert setup.answers == {"job-0": JobStatus.FAILED, "job-1": JobStatus.OK}
    assert [plan.num_tokens for plan in executor.plans] == [21, 21]


FAMILY = st.builds(
    lambda length, end: [*PREFIX[:length], *[90] * end], st.integers(0, 20), st.integers(0, 2)
)
CALLS = st.lists(FAMILY | st.sampled_from(["step", "abort"]), max_size=30)
FAILURES = st.frozensets(st.integers(1, 10), max_size=3)


@given(
    st.builds(FailingExecutor, st.booleans(), FAILURES, FAILURES),
    FAILURES,
    st.sampled_from([JOINING, ALONE, replace(JOINING, budget=ForwardBudget(9))]),
    CALLS,
)
def test_whatever_happens_every_transaction_ends(
    executor: FailingExecutor,
    failing_begins: frozenset[int],
    policy: SchedulingPolicy,
    calls: list[list[int] | str],
) -> None:
    setup = Setup(executor, MemoryCache(failing_begins=failing_begins), policy)
    submitted = 0
    for call in calls:
        if isinstance(call, list):
            setup.runtime.submit(f"job-{submitted}", request(call).pack(), None)
            submitted += 1
        elif call == "step":
            setup.runtime.step()
        else:
            setup.runtime.abort("", everything=True)
    setup.finish()
    assert len(setup.answers) == submitted
    assert "" not in setup.cache.outcomes
