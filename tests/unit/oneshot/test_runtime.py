"""The runtime is driven by random calls and compared with what each job must have got."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from weakref import WeakSet

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.oneshot import runtime as runtime_module
from sglang_prefill_ext.oneshot.job import Job, JobResult, JobStatus
from sglang_prefill_ext.oneshot.planner import ForwardPlan
from sglang_prefill_ext.oneshot.runtime import PackedRuntime
from sglang_prefill_ext.wire.packed import Float32Array, values_from_bytes
from tests.unit.wire.strategies import VOCAB, PlainRequest, plain_requests

BUDGET = 6
REQUESTS = plain_requests(max_prefix=15, max_suffix=BUDGET + 1, max_rows=5)


@pytest.fixture(autouse=True, scope="module")
def _no_log() -> Iterator[None]:
    """Log records of failures would keep tracebacks, and with them K/V, alive."""
    runtime_module.logger.disabled = True
    yield
    runtime_module.logger.disabled = False


def _mark(tokens: list[int], job: int) -> list[int]:
    """Give the tokens of a job a range of their own, so that its forwards are recognised."""
    return [job * VOCAB + token for token in tokens]


def _value(prompt: list[int], label: int) -> float:
    """Stands for a log-prob: depends on every token of the prompt and on the label."""
    weighted = sum(place * token for place, token in enumerate(prompt, start=1))
    return float((weighted * 31 + label) % 9973)


class StubHeld:
    """Stands for the K/V of a prefix: the tokens that it was computed from."""

    def __init__(self, prefix: list[int]) -> None:
        self.prefix = prefix
        self.used = False


class StubCompletion:
    def __init__(
        self, executor: StubExecutor, owner: int, values: list[float], held: StubHeld | None
    ) -> None:
        self.held = held
        self._executor, self._owner, self._values = executor, owner, values
        self._number = len(executor.launches)

    def wait(self) -> Float32Array:
        executor = self._executor
        assert executor.in_flight[0] is self, "forwards are collected in order, each once"
        executor.in_flight.pop(0)
        if self._number in executor.failing_waits:
            executor.failed_jobs.add(self._owner)
            raise RuntimeError("device lost")
        return np.array(self._values, dtype=np.float32)


@dataclass
class StubExecutor:
    """Computes `_value` of every row; launches and waits of given numbers (from 1) fail."""

    asynchronous: bool
    failing_launches: frozenset[int] = frozenset()
    failing_waits: frozenset[int] = frozenset()
    launches: list[list[int]] = field(default_factory=list)
    launched_of: Counter[int] = field(default_factory=Counter)
    tokens_of: Counter[int] = field(default_factory=Counter)
    failed_jobs: set[int] = field(default_factory=set)
    in_flight: list[StubCompletion] = field(default_factory=list)
    all_held: WeakSet[StubHeld] = field(default_factory=WeakSet)

    def launch(self, plan: ForwardPlan, held: StubHeld | None) -> StubCompletion:
        tokens = plan.token_ids.tolist()
        self.launches.append(tokens)
        owner = tokens[0] // VOCAB
        if len(self.launches) in self.failing_launches:
            self.failed_jobs.add(owner)
            raise MemoryError("out of memory")
        self.launched_of[owner] += 1
        self.tokens_of[owner] += len(tokens)
        (span,) = plan.layout.groups
        prefix = self._prefix_before(held, span.held, owner) + tokens[: span.fresh]
        kept = None
        if plan.hold_prefix:
            kept = StubHeld(prefix)
            self.all_held.add(kept)
        completion = StubCompletion(self, owner, _values_of(plan, prefix), kept)
        self.in_flight.append(completion)
        return completion

    def _prefix_before(self, held: StubHeld | None, length: int, owner: int) -> list[int]:
        first = self.launched_of[owner] == 1
        assert (held is None) == first, "only the first forward of a job starts without K/V"
        if held is None:
            return []
        assert not held.used, "a handle belongs to the next forward of the job"
        held.used = True
        assert len(held.prefix) == length
        return held.prefix


def _values_of(plan: ForwardPlan, prefix: list[int]) -> list[float]:
    (span,) = plan.layout.groups
    labels, values, at = iter(plan.label_ids.tolist()), [], span.fresh
    for length, count in zip(span.suffix_lens.tolist(), plan.label_lens.tolist(), strict=True):
        prompt = prefix + plan.token_ids[at : at + length].tolist()
        values += [_value(prompt, next(labels)) for _ in range(count)]
        at += length
    return values


@dataclass
class Simulation:
    """A runtime under test, with what it must have done by now."""

    executor: StubExecutor
    requests: list[PlainRequest] = field(default_factory=list)
    results: dict[int, JobResult] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.runtime = PackedRuntime(self.executor, self._on_answer, max_forward_tokens=BUDGET)

    def _on_answer(self, job: Job, result: JobResult) -> None:
        number = int(result.rid.removeprefix("job-"))
        assert number not in self.results, "a job is answered once"
        assert (job.rid, job.reply_to) == (result.rid, number)
        self.results[number] = result

    @property
    def unanswered(self) -> set[int]:
        return set(range(len(self.requests))) - set(self.results)

    def submit(self, request: PlainRequest) -> None:
        number = len(self.requests)
        request = PlainRequest(
            _mark(request.prefix, number),
            [_mark(suffix, number) for suffix in request.suffixes],
            request.labels,
            request.shared_labels,
        )
        self.requests.append(request)
        self.runtime.submit(f"job-{number}", request.pack(), number)

    def step(self) -> None:
        launches, in_flight = len(self.executor.launches), len(self.executor.in_flight)
        waiting = self.runtime.waiting_jobs
        progressed = self.runtime.step()
        launched = len(self.executor.launches) - launches
        assert launched == (1 if waiting else 0)
        assert progressed == bool(launched or in_flight)
        assert len(self.executor.in_flight) <= (1 if self.executor.asynchronous else 0)

    def abort(self, number: int | None) -> None:
        """Abort the jobs whose id starts like that of one job, or everything."""
        rid = "nobody" if number is None else f"job-{number}"
        self.aborted |= {
            job for job in self.unanswered if number is None or f"job-{job}".startswith(rid)
        }
        self.runtime.abort(rid, everything=number is None)
        assert not self.unanswered & self.aborted, "an aborted job is answered at once"

    def check(self) -> None:
        assert self.runtime.busy == bool(self.runtime.waiting_jobs or self.executor.in_flight)
        assert not self.unanswered or self.runtime.busy
        todo = [
            self.requests[job].num_tokens - self.executor.tokens_of[job] for job in self.unanswered
        ]
        assert self.runtime.waiting_tokens == sum(todo)

    def finish(self) -> None:
        for _ in range(1000):
            if not self.runtime.busy:
                break
            self.step()
            self.check()
        assert not self.runtime.busy
        assert not self.unanswered
        assert not self.executor.in_flight
        assert not self.executor.all_held, "no K/V outlives its request"

    def expected_status(self, number: int) -> JobStatus:
        too_long = max(map(len, self.requests[number].suffixes)) > BUDGET
        if number in self.aborted:
            return JobStatus.ABORTED
        failed = too_long or number in self.executor.failed_jobs
        return JobStatus.FAILED if failed else JobStatus.OK

    def expected_values(self, number: int) -> list[float]:
        request = self.requests[number]
        rows = zip(request.prompts, request.labels, strict=True)
        return [_value(prompt, label) for prompt, labels in rows for label in labels]


Call: TypeAlias = tuple[str, Any]

CALLS: st.SearchStrategy[list[Call]] = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), REQUESTS),
        st.tuples(st.just("step"), st.none()),
        st.tuples(st.just("step"), st.none()),
        st.tuples(st.just("abort"), st.integers(0, 4)),
        st.tuples(st.just("abort"), st.none()),
    ),
    max_size=25,
)
FAILURES = st.frozensets(st.integers(1, 20), max_size=3)
EXECUTORS = st.builds(
    StubExecutor,
    asynchronous=st.booleans(),
    failing_launches=FAILURES,
    failing_waits=FAILURES,
)


def _run(executor: StubExecutor, calls: list[Call]) -> Simulation:
    simulation = Simulation(executor)
    for name, argument in calls:
        if name == "step":
            simulation.step()
        else:
            getattr(simulation, name)(argument)
        simulation.check()
    simulation.finish()
    return simulation


@given(EXECUTORS, CALLS)
def test_every_job_is_answered_once_with_its_own_values(
    executor: StubExecutor, calls: list[Call]
) -> None:
    simulation = _run(executor, calls)
    assert len(simulation.results) == len(simulation.requests)
    for number, result in simulation.results.items():
        assert result.status == simulation.expected_status(number)
        assert result.forwards == executor.launched_of[number]
        assert result.tokens_computed == executor.tokens_of[number]
        assert min(result.queue_ms, result.compute_ms) >= 0
        if result.status is JobStatus.OK:
            values = values_from_bytes(result.values).tolist()
            assert values == simulation.expected_values(number)
            assert result.tokens_computed == simulation.requests[number].num_tokens
        else:
            assert result.values == b""
            assert result.message


@given(EXECUTORS, CALLS)
def test_jobs_are_served_in_order_of_arrival(executor: StubExecutor, calls: list[Call]) -> None:
    _run(executor, calls)
    owners = [tokens[0] // VOCAB for tokens in executor.launches]
    assert owners == sorted(owners)


@given(EXECUTORS, CALLS)
def test_two_ranks_that_get_the_same_calls_launch_the_same_forwards(
    executor: StubExecutor, calls: list[Call]
) -> None:
    other = StubExecutor(executor.asynchronous, executor.failing_launches, executor.failing_waits)
    first, second = _run(executor, calls), _run(other, calls)
    assert executor.launches == other.launches
    assert list(first.results) == list(second.results)


@given(EXECUTORS, CALLS)
def test_the_counters_add_up(executor: StubExecutor, calls: list[Call]) -> None:
    simulation = _run(executor, calls)
    stats = simulation.runtime.stats
    assert stats.forwards == executor.launched_of.total()
    assert stats.tokens_computed == executor.tokens_of.total()
    assert stats.requests == Counter(str(result.status) for result in simulation.results.values())


REQUEST = PlainRequest([1, 2, 3, 4], [[5, 6], [7, 8], [9]], [[1]] * 3, shared_labels=True)
"""Takes two forwards."""


def test_without_an_executor_every_job_is_declined_with_the_reason() -> None:
    results: list[JobResult] = []
    runtime = PackedRuntime(
        None,
        lambda job, result: results.append(result),
        max_forward_tokens=BUDGET,
        declined_reason="linear_attention",
    )
    runtime.submit("a", REQUEST.pack(), None)
    assert [(result.status, result.message) for result in results] == [
        (JobStatus.DECLINED, "linear_attention")
    ]
    assert not runtime.busy
    assert not runtime.step()


def test_a_gpu_computes_one_forward_while_the_next_is_prepared() -> None:
    simulation = Simulation(StubExecutor(asynchronous=True))
    simulation.submit(REQUEST)
    in_flight = []
    for _ in range(3):
        simulation.step()
        in_flight.append(len(simulation.executor.in_flight))
    assert in_flight == [1, 1, 0]
    assert simulation.results[0].status is JobStatus.OK


def test_a_failed_launch_spares_the_forward_of_another_job_in_flight() -> None:
    simulation = Simulation(StubExecutor(asynchronous=True, failing_launches=frozenset({3})))
    simulation.submit(REQUEST)
    simulation.submit(REQUEST)
    simulation.finish()
    assert [simulation.results[number].status for number in range(2)] == ["ok", "failed"]
    assert simulation.results[1].message == "MemoryError: out of memory"


def test_an_abort_reaches_all_jobs_whose_id_starts_alike() -> None:
    simulation = Simulation(StubExecutor(asynchronous=False))
    for _ in range(12):
        simulation.submit(REQUEST)
    simulation.runtime.abort("job-1")
    assert sorted(simulation.results) == [1, 10, 11]
    simulation.finish()


def test_waiting_jobs_start_over_on_demand() -> None:
    simulation = Simulation(StubExecutor(asynchronous=False))
    simulation.submit(REQUEST)
    simulation.step()
    assert simulation.runtime.waiting_tokens < REQUEST.num_tokens
    simulation.runtime.restart_waiting()
    assert simulation.runtime.waiting_tokens == REQUEST.num_tokens
    assert simulation.runtime.in_flight == 0
    assert not simulation.results
