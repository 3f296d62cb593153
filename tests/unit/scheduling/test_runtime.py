"""The runtime is driven by random calls and compared with what each job must have got."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.config import Order
from sglang_prefill_ext.scheduling.budget import QueueLoad
from sglang_prefill_ext.scheduling.graph_room import GraphCost
from sglang_prefill_ext.scheduling.planner import ForwardPlan
from sglang_prefill_ext.scheduling.policy import SchedulingPolicy
from sglang_prefill_ext.scheduling.runtime import Ended, PackedRuntime
from sglang_prefill_ext.wire.arrays import Float32Array, int_array, values_from_bytes
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows
from sglang_prefill_ext.wire.read import Vectors
from sglang_prefill_ext.wire.status import Status
from sglang_prefill_ext.wire.stock_reason import StockReason
from tests.unit.scheduling.caches import MemoryCache
from tests.unit.scheduling.jobs import first_come
from tests.unit.wire.strategies import VOCAB, PlainRequest, plain_requests

pytestmark = pytest.mark.usefixtures("no_log")

BUDGET = 12
COMMON_PREFIX = [1, 2, 3]
REQUESTS = plain_requests(max_prefix=15, max_suffix=BUDGET + 1, max_rows=5)
FITTING = plain_requests(max_prefix=0, max_suffix=3, max_rows=3).map(
    lambda request: replace(request, prefix=COMMON_PREFIX)
)
"""Requests of one piece that share their prefix."""

POLICY = first_come(BUDGET, launch_tokens=10**6)
POLICIES = st.builds(
    lambda order, ageing, launch: replace(POLICY, order=order, ageing=ageing, launch_tokens=launch),
    st.sampled_from(Order),
    st.integers(1, 20),
    st.sampled_from([0, 3, POLICY.launch_tokens]),
)


def _mark(tokens: list[int], job: int) -> list[int]:
    """Give each job's tokens their own range of ids, to recognise the job in forwards."""
    return [(job + 1) * VOCAB + token for token in tokens]


def _owners(tokens: list[int]) -> list[int]:
    return sorted({token // VOCAB - 1 for token in tokens} - {-1})


def _value(prompt: list[int], label: int) -> float:
    """Stands for a log-prob: depends on every token of the prompt and on the label."""
    weighted = sum(place * token for place, token in enumerate(prompt, start=1))
    return float((weighted * 31 + label) % 9973)


class StubCompletion:
    def __init__(self, executor: StubExecutor, owners: list[int], values: list[float]) -> None:
        self._executor, self._owners, self._values = executor, owners, values
        self._number = len(executor.launches)
        self._looks = executor.looks

    def done(self) -> bool:
        self._looks -= 1
        return self._looks < 0

    def wait(self) -> Float32Array:
        executor = self._executor
        assert executor.in_flight[0] is self, "forwards are collected in order, each once"
        executor.in_flight.pop(0)
        if self._number in executor.failing_waits:
            executor.failures.append(self._owners)
            raise RuntimeError("device lost")
        return np.array(self._values, dtype=np.float32)


@dataclass
class StubExecutor:
    """Computes `_value` of every row; launches and waits of given numbers (from 1) fail.

    So does every launch with a token of the job `guilty`. A rank that is alone looks so often at a
    forward before that is done.
    """

    asynchronous: bool
    looks: int = 0
    failing_launches: frozenset[int] = frozenset()
    failing_waits: frozenset[int] = frozenset()
    guilty: int | None = None
    launches: list[list[int]] = field(default_factory=list)
    """Jobs of every forward."""
    launched_of: Counter[int] = field(default_factory=Counter)
    num_tokens: list[int] = field(default_factory=list)
    failures: list[list[int]] = field(default_factory=list)
    in_flight: list[StubCompletion] = field(default_factory=list)
    causal: bool = True
    token_in: dict[int, int] = field(default_factory=dict)
    """Stands for K/V in the slots of a pool: the tokens from which they were computed."""

    def launch(self, plan: ForwardPlan) -> StubCompletion:
        tokens = plan.token_ids.tolist()
        owners = _owners(tokens)
        self.launches.append(owners)
        if len(self.launches) in self.failing_launches or self.guilty in owners:
            self.failures.append(owners)
            raise MemoryError("out of memory")
        self.launched_of.update(owners)
        self.num_tokens.append(len(tokens))
        completion = StubCompletion(self, owners, self._run(plan))
        self.in_flight.append(completion)
        return completion

    def _run(self, plan: ForwardPlan) -> list[float]:
        tokens, at, values = plan.token_ids.tolist(), 0, list[float]()
        labels, counts = iter(plan.reads.label_ids.tolist()), iter(plan.reads.lens.tolist())
        for span, before, store in zip(plan.layout.groups, plan.held, plan.stores, strict=True):
            slots = [] if before is None else before.tolist()
            assert len(slots) == span.held
            fresh = tokens[at : at + span.fresh]
            prefix = [self.token_in[slot] for slot in slots] + fresh
            if store is not None:
                self.token_in.update(zip(store.tolist(), fresh, strict=True))
            at += span.fresh
            for length in span.suffix_lens.tolist():
                prompt = prefix + tokens[at : at + length]
                values += [_value(prompt, next(labels)) for _ in range(next(counts))]
                at += length
        return values


@dataclass
class Simulation:
    """A runtime under test, and a model of what it must have done so far."""

    executor: StubExecutor
    policy: SchedulingPolicy = POLICY
    alone: bool = False
    requests: list[PlainRequest] = field(default_factory=list)
    results: dict[int, PackedResult] = field(default_factory=dict)
    answered_together: list[int] = field(default_factory=list)
    aborted: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.slots = MemoryCache(keeps=False)
        args = (self.executor, self._on_answer, self.policy)
        self.runtime = PackedRuntime(*args, cache=self.slots, alone=self.alone)

    def _on_answer(self, ended: Sequence[Ended]) -> None:
        self.answered_together.append(len(ended))
        for job, result in ended:
            number = int(job.rid.removeprefix("job-"))
            assert number not in self.results, "a job is answered once"
            assert job.reply_to == number
            self.results[number] = result

    @property
    def unanswered(self) -> set[int]:
        return set(range(len(self.requests))) - set(self.results)

    def submit(self, *requests: PlainRequest, **options: Any) -> None:
        for each in requests:
            number = len(self.requests)
            is_common = each.prefix == COMMON_PREFIX
            marked = PlainRequest(
                COMMON_PREFIX if is_common else _mark(each.prefix, number),
                [_mark(suffix, number) for suffix in each.suffixes],
                each.labels,
                each.shared_labels,
            )
            self.requests.append(marked)
            self.runtime.submit(f"job-{number}", marked.pack(), number, **options)

    def step(self, launch: bool = True) -> None:
        launches, in_flight = len(self.executor.launches), len(self.executor.in_flight)
        launched_before = self.executor.launched_of.copy()
        waiting, least = len(self.runtime.queue), self.runtime.next_tokens
        assert bool(least) == bool(waiting)
        progressed = self.runtime.step(launch=launch)
        launched = len(self.executor.launches) - launches
        assert launched == (1 if waiting and launch else 0)
        if launched and self.executor.launched_of != launched_before:
            assert self.executor.num_tokens[-1] >= least
        collected = in_flight + launched - len(self.executor.in_flight)
        assert progressed == bool(launched or collected)
        if in_flight and not launched and not self.alone:
            assert collected == in_flight
        assert len(self.executor.in_flight) <= (1 if self.executor.asynchronous else 0)

    def abort(self, number: int | None) -> None:
        """Abort one job, or everything."""
        rid = "nobody" if number is None else f"job-{number}"
        self.aborted |= {job for job in self.unanswered if number in (None, job)}
        self.runtime.abort(rid, everything=number is None)
        assert not self.unanswered & self.aborted, "an aborted job is answered at once"

    def check(self) -> None:
        assert self.runtime.busy == bool(self.runtime.queue or self.executor.in_flight)
        assert self.runtime.in_flight == len(self.executor.in_flight)
        assert not self.unanswered or self.runtime.busy
        assert bool(self.runtime.queue.load.tokens) == bool(self.runtime.queue)

    def finish(self) -> None:
        for _ in range(1000):
            if not self.runtime.busy:
                break
            self.step()
            self.check()
        assert not self.runtime.busy
        assert not self.unanswered
        assert not self.executor.in_flight
        self.slots.check_idle()

    def may_have_failed(self, number: int) -> bool:
        """Whether a forward of this job alone may have failed."""
        return [number] in self.executor.failures

    def fits(self, number: int) -> bool:
        """Whether every row of the job fits into a forward."""
        return max(map(len, self.requests[number].suffixes)) <= BUDGET

    def expected_values(self, number: int) -> list[float]:
        request = self.requests[number]
        rows = zip(request.prompts, request.labels, strict=True)
        return [_value(prompt, label) for prompt, labels in rows for label in labels]


Call: TypeAlias = tuple[str, Any]

CALLS: st.SearchStrategy[list[Call]] = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), REQUESTS),
        st.tuples(st.just("submit"), FITTING),
        st.tuples(st.just("step"), st.booleans()),
        st.tuples(st.just("abort"), st.none() | st.integers(0, 4)),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=25,
)
FAILURES = st.frozensets(st.integers(1, 20), max_size=3)
EXECUTORS = st.builds(
    StubExecutor,
    asynchronous=st.booleans(),
    looks=st.integers(0, 3),
    failing_launches=FAILURES,
    failing_waits=FAILURES,
)


def _simulate(
    executor: StubExecutor, policy: SchedulingPolicy, calls: list[Call], *, alone: bool = False
) -> Simulation:
    simulation = Simulation(executor, policy, alone)
    for name, argument in calls:
        if name == "restart":
            simulation.runtime.restart_waiting()
        else:
            getattr(simulation, name)(argument)
        simulation.check()
    simulation.finish()
    return simulation


@given(EXECUTORS, POLICIES, CALLS, st.booleans())
def test_every_job_is_answered_once_with_its_own_values(
    executor: StubExecutor, policy: SchedulingPolicy, calls: list[Call], alone: bool
) -> None:
    simulation = _simulate(executor, policy, calls, alone=alone)
    assert len(simulation.results) == len(simulation.requests)
    for number, result in simulation.results.items():
        assert (result.status is Status.ABORTED) == (number in simulation.aborted)
        assert result.forwards == executor.launched_of[number] or number in simulation.aborted
        assert min(result.queue_ms, result.compute_ms) >= 0
        if result.status is Status.OK:
            values = values_from_bytes(result.values).tolist()
            assert values == simulation.expected_values(number)
        else:
            assert result.values == b""
            assert result.message
        unfit = result.status is Status.UNFIT
        assert result.longest_row == (policy.budget.longest_row if unfit else 0)


@given(EXECUTORS, POLICIES, CALLS)
def test_a_job_fails_only_of_what_it_does_alone(
    executor: StubExecutor, policy: SchedulingPolicy, calls: list[Call]
) -> None:
    simulation = _simulate(executor, policy, calls)
    for number, result in simulation.results.items():
        assert (result.status is Status.UNFIT) == (not simulation.fits(number))
        if result.status is Status.FAILED:
            assert simulation.may_have_failed(number)
        elif number not in simulation.aborted and not executor.asynchronous:
            assert not simulation.may_have_failed(number)


@given(st.booleans(), POLICIES, st.lists(REQUESTS | FITTING, min_size=1), st.data())
def test_one_bad_job_does_not_take_others_along(
    asynchronous: bool, policy: SchedulingPolicy, requests: list[PlainRequest], data: st.DataObject
) -> None:
    executor = StubExecutor(asynchronous, guilty=data.draw(st.sampled_from(range(len(requests)))))
    simulation = Simulation(executor, policy)
    for request in requests:
        simulation.submit(request)
    simulation.finish()
    for number, result in simulation.results.items():
        if simulation.fits(number):
            assert (result.status is Status.FAILED) == (number == executor.guilty)
        else:
            assert result.status is Status.UNFIT


@given(st.booleans(), CALLS)
def test_first_come_first_served_is_in_order_of_arrival(
    asynchronous: bool, calls: list[Call]
) -> None:
    executor = StubExecutor(asynchronous)
    _simulate(executor, POLICY, calls)
    owners = [owner for forward in executor.launches for owner in forward]
    assert owners == sorted(owners)


@given(EXECUTORS, POLICIES, CALLS)
def test_two_ranks_that_get_the_same_calls_launch_the_same_forwards(
    executor: StubExecutor, policy: SchedulingPolicy, calls: list[Call]
) -> None:
    fails = executor.failing_launches, executor.failing_waits
    other = StubExecutor(executor.asynchronous, executor.looks + 1, *fails)  # a slower device
    first, second = _simulate(executor, policy, calls), _simulate(other, policy, calls)
    assert executor.launches == other.launches
    assert list(first.results) == list(second.results)


@given(EXECUTORS, POLICIES, CALLS)
def test_the_counters_add_up(
    executor: StubExecutor, policy: SchedulingPolicy, calls: list[Call]
) -> None:
    simulation = _simulate(executor, policy, calls)
    stats, results = simulation.runtime.stats, simulation.results.values()
    assert stats.forwards == len(executor.num_tokens)
    assert stats.tokens_computed == sum(executor.num_tokens)
    assert max(executor.num_tokens, default=0) <= BUDGET
    assert stats.requests == Counter(str(result.status) for result in results)
    if not simulation.aborted:
        assert stats.tokens_computed == sum(result.tokens_computed for result in results)


REQUEST = PlainRequest([1, 2, 3, 4, 5, 6, 7], [[5, 6], [7, 8], [9] * 5], [[1]] * 3, True)
"""Takes two forwards."""

SMALL = PlainRequest(COMMON_PREFIX, [[5], [6]], [[1]] * 2, shared_labels=True)
"""Takes a part of a forward."""


def test_without_an_executor_every_job_is_declined_with_the_reason() -> None:
    results: list[PackedResult] = []
    runtime = PackedRuntime(
        None,
        lambda ended: results.extend(result for _, result in ended),
        POLICY,
        declined_reason=StockReason.POOLING,
    )
    runtime.submit("a", REQUEST.pack(), None)
    assert [(result.status, result.message) for result in results] == [(Status.DECLINED, "pooling")]
    assert not runtime.busy
    assert not runtime.step()


def test_a_rank_that_is_alone_launches_what_arrives_behind_a_forward_that_runs() -> None:
    executor = StubExecutor(asynchronous=True, looks=2)
    simulation = Simulation(executor, alone=True)
    simulation.submit(SMALL)
    simulation.step()
    assert not simulation.runtime.step()  # it is not done, and nothing else is to be launched
    simulation.submit(SMALL)
    simulation.runtime.step()
    assert executor.launches == [[0], [1]]
    assert list(simulation.results) == [0]  # two forwards are in flight at most
    simulation.finish()
    assert list(simulation.results) == [0, 1]


def test_ranks_that_compute_together_wait_for_a_forward_that_runs() -> None:
    simulation = Simulation(StubExecutor(asynchronous=True, looks=2))
    simulation.submit(SMALL)
    simulation.step()
    assert simulation.runtime.step()
    assert list(simulation.results) == [0]


def test_a_gpu_computes_one_forward_while_the_next_is_prepared() -> None:
    simulation = Simulation(StubExecutor(asynchronous=True))
    simulation.submit(REQUEST)
    in_flight = []
    for _ in range(3):
        simulation.step()
        in_flight.append(len(simulation.executor.in_flight))
    assert in_flight == [1, 1, 0]
    assert simulation.results[0].status is Status.OK


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock of the runtime, which stands still; `now_s` is to be set."""
    clock = SimpleNamespace(monotonic=lambda: clock.now_s, now_s=1.0)
    for module in ("forwards", "job", "runtime"):
        monkeypatch.setattr(f"sglang_prefill_ext.scheduling.{module}.time", clock)
    return clock


@pytest.mark.parametrize("alone", [False, True])
def test_requests_gather_while_the_device_is_busy_and_a_forward_has_room(
    clock: SimpleNamespace, alone: bool
) -> None:
    simulation = Simulation(StubExecutor(asynchronous=True), alone=alone)
    runtime = simulation.runtime
    simulation.submit(SMALL)
    simulation.step()
    assert not runtime.may_wait  # how long forwards take is not known yet
    clock.now_s = 2.0
    runtime.collect()
    simulation.submit(SMALL)
    simulation.step()  # as long as the one before: one second
    simulation.submit(SMALL)
    assert runtime.may_wait == alone
    clock.now_s = 2.9
    assert runtime.may_wait == alone
    simulation.submit(REQUEST)
    assert not runtime.may_wait  # more waits than fits
    runtime.abort("job-3")
    clock.now_s = 3.1
    assert not runtime.may_wait
    runtime.collect()
    assert not runtime.may_wait


def test_a_short_forward_that_no_graph_replays_costs_as_much_as_its_launches() -> None:
    policy = replace(POLICY, launch_tokens=9, graphs=GraphCost(tokens=BUDGET, eager_tokens=500))
    simulation = Simulation(StubExecutor(asynchronous=True), policy)
    costs = []
    for rows in (SMALL.pack(), replace(SMALL.pack(), adapter="an-adapter")):
        simulation.runtime.submit(f"job-{len(costs)}", rows, len(costs))
        simulation.requests.append(SMALL)
        simulation.runtime.step()
        (launched,) = simulation.runtime._forwards.in_flight
        costs.append(launched.cost)
        simulation.runtime.collect()
    assert costs == [9 + len(COMMON_PREFIX) + 2, 500]


def test_waiting_is_told_from_computing(clock: SimpleNamespace) -> None:
    simulation = Simulation(StubExecutor(asynchronous=True))
    simulation.submit(REQUEST)
    for now_s in (3.0, 4.0, 9.0):  # launches; launches and collects; collects
        clock.now_s = now_s
        simulation.step()
    result, stats = simulation.results[0], simulation.runtime.stats
    assert (result.queue_ms, result.compute_ms) == (2_000.0, 6_000.0)
    assert stats.busy_s == 6.0


def test_waiting_requests_share_a_forward_and_the_prefix() -> None:
    simulation = Simulation(StubExecutor(asynchronous=False))
    simulation.submit(*[SMALL] * 4)
    simulation.step()
    assert simulation.executor.launches == [[0, 1, 2, 3]]
    assert simulation.executor.num_tokens == [3 + 4 * 2]
    assert [result.tokens_computed for result in simulation.results.values()] == [5, 2, 2, 2]
    assert simulation.answered_together == [4]
    assert simulation.runtime.stats.tokens_saved == 4 * 8 - 11


def test_prompts_that_see_all_of_themselves_share_no_prefix() -> None:
    simulation = Simulation(StubExecutor(asynchronous=False, causal=False))
    simulation.submit(SMALL, SMALL)
    simulation.finish()
    assert sum(simulation.executor.num_tokens) == 2 * 8
    assert simulation.runtime.stats.tokens_saved == 0


def test_places_inside_prompts_fail_where_prompts_see_all_of_themselves() -> None:
    ended: list[Ended] = []
    executor = StubExecutor(asynchronous=False, causal=False)
    runtime = PackedRuntime(executor, ended.extend, POLICY)
    one, two = int_array([1, 1]), int_array([2])
    rows = PackedRows(one, 0, two, Vectors(3, one), read_lens=two)
    runtime.submit("one", rows, None)
    assert [result.status for _, result in ended] == [Status.FAILED]
    assert not runtime.busy


def test_a_step_may_take_fewer() -> None:
    simulation = Simulation(StubExecutor(asynchronous=False))
    simulation.submit(*[SMALL] * 4)
    simulation.runtime.step(join_tokens=7)
    assert simulation.executor.launches == [[0, 1]]
    simulation.runtime.step(join_tokens=0)
    assert simulation.executor.launches == [[0, 1], [2]]


def test_repeated_rows_are_computed_once() -> None:
    request = PlainRequest([1, 2], [[5], [6], [5]], [[1], [2], [3]], shared_labels=False)
    simulation = Simulation(StubExecutor(asynchronous=False))
    simulation.submit(request)
    simulation.finish()
    assert simulation.executor.num_tokens == [4]
    values = values_from_bytes(simulation.results[0].values).tolist()
    assert values == simulation.expected_values(0)


def test_a_failed_launch_spares_the_forward_of_another_job_in_flight() -> None:
    simulation = Simulation(StubExecutor(asynchronous=True, failing_launches=frozenset({3})))
    simulation.submit(REQUEST, REQUEST)
    simulation.finish()
    assert [simulation.results[number].status for number in range(2)] == ["ok", "failed"]
    assert simulation.results[1].message == "MemoryError: out of memory"


def test_of_a_failed_shared_forward_each_job_runs_alone_once() -> None:
    simulation = Simulation(StubExecutor(asynchronous=False, guilty=1))
    simulation.submit(SMALL, SMALL, SMALL)
    simulation.finish()
    assert simulation.executor.launches == [[0, 1, 2], [0], [1], [2]]
    assert [result.status for result in simulation.results.values()] == ["ok", "failed", "ok"]
    assert simulation.runtime.stats.retried_forwards == 1


def test_what_a_job_launched_before_it_started_over_is_ignored() -> None:
    simulation = Simulation(StubExecutor(asynchronous=True, failing_waits=frozenset({1})))
    simulation.submit(SMALL, PlainRequest([1] * 3, [[2] * 4, [3] * 6], [[1]] * 2, True))
    simulation.finish()
    # The second forward was in flight when the first one failed and both jobs started over.
    assert simulation.executor.launches == [[0, 1], [1], [0], [1], [1]]
    for number, result in simulation.results.items():
        assert values_from_bytes(result.values).tolist() == simulation.expected_values(number)


def test_a_job_whose_company_left_in_flight_is_not_blamed() -> None:
    simulation = Simulation(StubExecutor(asynchronous=True, failing_waits=frozenset({1})))
    simulation.submit(SMALL, SMALL)
    simulation.step()
    simulation.abort(0)
    simulation.finish()
    assert simulation.executor.launches == [[0, 1], [1]]
    assert [simulation.results[number].status for number in range(2)] == ["aborted", "ok"]


def test_k_v_of_one_prefix_is_held_at_a_time() -> None:
    policy = replace(POLICY, order=Order.PRIORITY)
    simulation = Simulation(StubExecutor(asynchronous=False), policy)
    simulation.submit(REQUEST)
    simulation.step()
    simulation.submit(REQUEST, priority=1)
    simulation.submit(SMALL, priority=2)
    simulation.finish()
    assert simulation.executor.launches == [[0], [0, 2], [1], [1]]


def test_an_abort_reaches_the_job_of_that_whole_name_alone() -> None:
    simulation = Simulation(StubExecutor(asynchronous=False))
    simulation.submit(*[REQUEST] * 12)
    simulation.step()  # so that one has begun
    for beginning in ("", "j", "job", "job-", "job-12", "job-1 "):
        simulation.runtime.abort(beginning)
        assert not simulation.results, beginning
    simulation.runtime.abort("job-1")
    assert sorted(simulation.results) == [1]
    simulation.finish()


def test_a_job_that_flies_and_waits_is_aborted_once() -> None:
    simulation = Simulation(StubExecutor(asynchronous=True))
    simulation.submit(REQUEST)
    simulation.step()
    assert (simulation.runtime.in_flight, len(simulation.runtime.queue)) == (1, 1)
    simulation.abort(0)
    assert simulation.answered_together == [1]
    simulation.finish()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_waiting_jobs_start_over_on_demand(asynchronous: bool) -> None:
    simulation = Simulation(StubExecutor(asynchronous))
    simulation.submit(REQUEST)
    simulation.step()
    assert simulation.runtime.queue.load.tokens < REQUEST.num_tokens
    simulation.runtime.restart_waiting()
    assert simulation.runtime.queue.load.tokens == REQUEST.num_tokens
    assert simulation.runtime.in_flight == 0
    assert not simulation.results


def test_who_starts_over_again_and_again_saves_no_tokens() -> None:
    simulation = Simulation(StubExecutor(asynchronous=False))
    simulation.submit(REQUEST)
    for _ in range(5):
        simulation.step()
        simulation.runtime.restart_waiting()
    simulation.finish()
    (result,) = simulation.results.values()
    assert result.tokens_computed > 3 * 7 + 9  # more than three prompts have
    assert simulation.runtime.stats.tokens_saved == 0


def test_a_full_queue_rejects_at_once_and_says_when_to_come_again() -> None:
    limits = QueueLoad(tokens=20, rows=10, bytes=10**6)
    simulation = Simulation(StubExecutor(asynchronous=False), replace(POLICY, limits=limits))
    simulation.runtime.stats.record_pace(tokens=320, seconds=10.0)
    simulation.submit(REQUEST, SMALL)
    assert simulation.results[1].status is Status.REJECTED
    assert "21 tokens would wait, the limit is 20" in simulation.results[1].message
    assert simulation.results[1].retry_after_s == REQUEST.num_tokens / 32
    simulation.finish()
    simulation.submit(SMALL)
    simulation.finish()
    assert [simulation.results[number].status for number in (0, 2)] == ["ok", "ok"]
    assert simulation.results[2].retry_after_s == 0


def test_a_job_that_would_be_late_is_refused_while_it_waits() -> None:
    simulation = Simulation(StubExecutor(asynchronous=False), replace(POLICY, launch_tokens=0))
    for deadline_ms in (1_000.0, 1_600.0, None):
        simulation.submit(SMALL, deadline_ms=deadline_ms)
    runtime = simulation.runtime
    assert runtime.expire(0.0, tokens_per_s=math.inf) == []
    assert runtime.expire(600.0, tokens_per_s=10.0) == ["job-0"]  # 5 tokens take 0.5 s
    assert simulation.results[0].status is Status.EXPIRED
    simulation.step()
    assert runtime.expire(5_000.0, tokens_per_s=math.inf) == []  # it is answered already
    simulation.finish()
    assert [simulation.results[number].status for number in (1, 2)] == ["ok", "ok"]


def test_a_measured_pace_counts_only_while_more_waits_than_a_forward_takes() -> None:
    simulation = Simulation(StubExecutor(asynchronous=False), POLICY)
    runtime = simulation.runtime
    runtime.stats.record_pace(tokens=10, seconds=1.0)
    simulation.submit(SMALL, deadline_ms=1_000.0)  # 5 tokens take 0.5 s
    assert runtime.deadline_pace == math.inf
    assert [runtime.overdue(now_ms) for now_ms in (600.0, 1_001.0)] == [False, True]
    simulation.submit(SMALL, SMALL)
    assert runtime.deadline_pace == 10.0
    assert [runtime.overdue(now_ms) for now_ms in (400.0, 600.0)] == [False, True]


def test_an_unknown_pace_delays_no_deadline() -> None:
    simulation = Simulation(StubExecutor(asynchronous=False), POLICY)
    runtime = simulation.runtime
    assert not runtime.overdue(1e15)
    for _ in range(3):  # more than a forward takes
        simulation.submit(SMALL, deadline_ms=1_000.0)
    assert runtime.deadline_pace == math.inf
    assert [runtime.overdue(now_ms) for now_ms in (1_000.0, 1_001.0)] == [False, True]


@pytest.mark.parametrize(
    ("order", "expected"),
    [(Order.FCFS, [0, 1, 2]), (Order.PRIORITY, [2, 0, 1]), (Order.DEADLINE, [1, 0, 2])],
)
def test_the_order_decides_who_is_next(order: Order, expected: list[int]) -> None:
    policy = replace(POLICY, order=order, launch_tokens=0)
    simulation = Simulation(StubExecutor(asynchronous=False), policy)
    for options in ({}, {"deadline_ms": 1e3}, {"priority": 1}):
        simulation.submit(SMALL, **options)
    simulation.finish()
    assert [owner for (owner,) in simulation.executor.launches] == expected
