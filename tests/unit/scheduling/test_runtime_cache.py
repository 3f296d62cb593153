"""What the runtime does with the prefix cache: when transactions begin, and how they end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sglang_prefill_ext.config import Order
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.policy import SchedulingPolicy
from sglang_prefill_ext.scheduling.runtime import Ended, PackedRuntime
from sglang_prefill_ext.wire.packed import PackedResult
from sglang_prefill_ext.wire.status import Status
from tests.unit.scheduling.caches import MemoryCache
from tests.unit.scheduling.failing import JOINING, LARGE, PREFIX, FailingExecutor
from tests.unit.scheduling.jobs import request

pytestmark = pytest.mark.usefixtures("no_log")

ALONE = replace(JOINING, launch_tokens=0)
SMALL = replace(JOINING, budget=ForwardBudget(9))

each_place = pytest.mark.parametrize("place", ["failing_launches", "failing_waits"])


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
        self.answers: dict[str, Status] = {}
        self.tokens_cached: list[int] = []
        self.runtime = PackedRuntime(executor, self._answer, policy, cache=self.cache)

    def _answer(self, ended: Sequence[Ended]) -> None:
        for job, result in ended:
            assert job.rid not in self.answers
            self.answers[job.rid] = Status(result.status)
            self.tokens_cached.append(result.tokens_cached)

    def submit(self, *prefixes: list[int]) -> None:
        for prefix in prefixes:
            self.submit_rows(prefix, [])

    def submit_large(self, prefix: list[int], rows: int, **options: Any) -> None:
        self.submit_rows(prefix, [[100 + row] for row in range(rows)], **options)

    def submit_rows(self, prefix: list[int], suffixes: list[list[int]], **options: Any) -> None:
        rid = f"job-{len(self.answers) + len(self.runtime.queue) + self.runtime.in_flight}"
        self.runtime.submit(rid, request(prefix, *suffixes).pack(), None, **options)

    def evict(self) -> None:
        """Empty the cache."""
        for slots in self.cache.committed.values():
            self.cache.free += slots.tolist()
        self.cache.committed.clear()

    def finish(self) -> None:
        while self.runtime.busy:
            self.runtime.step()
        self.cache.check_idle()

    @property
    def computed(self) -> list[int]:
        """Tokens of each forward."""
        return [plan.num_tokens for plan in self.executor.plans]

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
    assert setup.computed == [21, 1]
    stats = setup.runtime.stats
    assert (stats.tokens_computed, stats.tokens_cached, stats.tokens_saved) == (22, 20, 20)
    assert setup.tokens_cached == [0, 20]


@pytest.mark.parametrize("shares", [True, False])
def test_answers_say_whether_prefixes_are_kept(shares: bool) -> None:
    cache = MemoryCache()
    cache.shares = shares
    results: list[PackedResult] = []
    for kept in (cache, None):
        runtime = PackedRuntime(
            FailingExecutor(), lambda ended: results.extend(r for _, r in ended), ALONE, cache=kept
        )
        runtime.submit("r", request(PREFIX).pack(), None)
        while runtime.busy:
            runtime.step()
    assert [each.no_cache for each in results] == [not shares, True]


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
    assert setup.answers == {"job-0": Status.FAILED}
    assert setup.cache.outcomes == ["rollback"]
    assert not setup.committed


@each_place
def test_jobs_that_run_alone_after_a_failure_begin_anew(place: str) -> None:
    setup = Setup(FailingExecutor())
    setattr(setup.executor, place, frozenset([1]))
    setup.submit(PREFIX, PREFIX)
    setup.finish()
    assert set(setup.answers.values()) == {Status.OK}
    assert setup.cache.outcomes == ["rollback", "commit", "commit"]
    assert setup.computed == [22, 21, 1]


def test_a_cache_that_cannot_begin_fails_like_a_launch() -> None:
    setup = Setup(FailingExecutor(), MemoryCache(failing_begins=frozenset([2])))
    setup.submit(PREFIX, PREFIX[::-1])
    setup.finish()
    assert set(setup.answers.values()) == {Status.OK}
    assert setup.cache.outcomes == ["rollback", "commit", "commit"]


def test_what_an_aborted_job_has_computed_is_committed() -> None:
    setup = Setup(FailingExecutor(asynchronous=True))
    setup.submit(PREFIX)
    setup.runtime.step()
    setup.runtime.abort("job-0")
    setup.finish()
    assert setup.answers == {"job-0": Status.ABORTED}
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
    assert setup.computed == forwards
    setup.finish()
    assert set(setup.answers.values()) == {Status.OK}


def test_nobody_waits_for_what_is_not_stored() -> None:
    setup = Setup(FailingExecutor(asynchronous=True), MemoryCache(keeps=False), ALONE)
    for prefix in (PREFIX, PREFIX, PREFIX[::-1]):
        setup.submit(prefix)
        setup.runtime.step()
        assert setup.runtime.in_flight == 1
    assert setup.computed == [21, 21, 21]
    assert setup.cache.outcomes == ["commit", "commit", ""]


def test_a_follower_computes_the_prefix_itself_if_its_leader_fails() -> None:
    executor = FailingExecutor(asynchronous=True, failing_waits=frozenset([1]))
    setup = Setup(executor, policy=ALONE)
    for _ in range(2):
        setup.submit(PREFIX)
        setup.runtime.step()
    assert setup.cache.outcomes == ["rollback", ""]
    setup.finish()
    assert setup.answers == {"job-0": Status.FAILED, "job-1": Status.OK}
    assert setup.computed == [21, 21]


ROWS = [[200 + row] * 33 for row in range(3)]


@pytest.mark.parametrize("prefix", [[], PREFIX], ids=["bare", "prefix"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_rows_that_come_again_are_stored_and_then_found(
    asynchronous: bool, prefix: list[int]
) -> None:
    setup = Setup(FailingExecutor(asynchronous), policy=replace(ALONE, budget=ForwardBudget(150)))
    for rows in (ROWS[:2], ROWS, ROWS, ROWS[::-1]):
        setup.submit_rows(prefix, rows)
        setup.finish()
    length, kept = len(prefix), (len(prefix) + 33 - 1) // 4 * 4
    left = length + 33 - kept
    # Rows 0 and 1 come for the second time, then also row 2. The prefix was stored at once.
    assert setup.computed == [
        length + 2 * 33,
        3 * 33,
        2 * left + 33,
        3 * left,
    ]
    assert setup.committed >= {(*prefix, *row[: kept - length]) for row in ROWS}
    assert setup.tokens_cached == ([0, length, length, length] if prefix else [0] * 4)


def test_rows_of_several_forwards_are_found_too() -> None:
    setup = Setup(FailingExecutor(), policy=replace(ALONE, budget=ForwardBudget(40)))
    for _ in range(3):
        setup.submit_rows([7], ROWS)
        setup.finish()
    computed = setup.computed
    assert computed == [1 + 33, 33, 33] + [33] * 3 + [2] * 3


def test_rows_that_see_all_of_themselves_are_never_found() -> None:
    setup = Setup(FailingExecutor(causal=False), policy=replace(ALONE, budget=ForwardBudget(200)))
    for _ in range(3):
        setup.submit_rows([7], ROWS)
        setup.finish()
    assert setup.computed == [3 * (1 + 33)] * 3
    assert not setup.cache.begun


def test_evicted_rows_are_computed_again() -> None:
    setup = Setup(FailingExecutor(), policy=replace(ALONE, budget=ForwardBudget(150)))
    for number in range(4):
        setup.submit_rows([], ROWS)
        if number == 3:
            setup.evict()
        setup.finish()
    assert setup.computed == [99, 99, 3, 99]


def test_who_comes_again_counts_as_shorter() -> None:
    policy = replace(ALONE, order=Order.SRPT, budget=ForwardBudget(150))
    setup = Setup(FailingExecutor(), policy=policy)
    for _ in range(2):
        setup.submit_rows([], ROWS)
        setup.finish()
    setup.runtime.submit("other", request([], *[row[:10] for row in ROWS]).pack(), None)
    setup.runtime.submit("again", request([], *ROWS).pack(), None)
    setup.finish()
    assert [*setup.answers][2:] == ["again", "other"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_prefix_longer_than_a_forward_is_cached(asynchronous: bool) -> None:
    setup = Setup(FailingExecutor(asynchronous))
    for _ in range(2):
        setup.submit_large(LARGE, rows=3)
        setup.finish()
    computed = setup.computed
    assert sum(computed[:-1]) == 203
    assert computed[-1] == 3
    assert setup.committed == {tuple(LARGE)}
    assert setup.tokens_cached == [0, 200]
    assert setup.runtime.stats.tokens_cached == 200


def test_a_long_prefix_is_cached_while_the_forward_of_another_job_is_in_flight() -> None:
    setup, other = Setup(FailingExecutor(asynchronous=True)), list(range(300, 360))
    setup.submit_large(LARGE, rows=3)
    setup.submit(other)
    setup.finish()
    assert setup.committed == {tuple(LARGE), tuple(other)}


def test_what_is_cached_of_a_long_prefix_is_not_computed_again() -> None:
    setup = Setup(FailingExecutor())
    setup.submit(LARGE[:50])
    setup.submit_large(LARGE, rows=70)
    setup.submit_large([*LARGE, 7], rows=70)
    setup.finish()
    assert sum(setup.computed) == 51 + 150 + 70 + 1 + 70
    assert setup.tokens_cached == [0, 50, 200]


def test_what_is_cached_after_the_first_forward_of_a_job_does_not_divide_it_anew() -> None:
    setup = Setup(FailingExecutor())
    setup.submit(LARGE[:5])
    setup.submit_large(LARGE, rows=3)
    setup.finish()
    assert sum(setup.computed) == 6 + 203
    assert setup.committed == {tuple(LARGE[:5]), tuple(LARGE)}


def test_a_prefix_that_has_left_the_cache_meanwhile_is_computed_again() -> None:
    setup = Setup(FailingExecutor())
    setup.submit_large(LARGE, rows=3)
    setup.finish()
    setup.submit_large(LARGE, rows=3)
    setup.evict()
    setup.finish()
    assert set(setup.answers.values()) == {Status.OK}
    assert sum(setup.computed) == 2 * 203
    assert max(setup.computed) <= 64


def test_a_follower_waits_for_the_last_forward_of_a_long_prefix() -> None:
    setup = Setup(FailingExecutor(asynchronous=True))
    for _ in range(2):
        setup.submit_large(LARGE, rows=3)
    setup.finish()
    assert sum(setup.computed) == 203 + 3


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("end", ["abort", "expire", "restart", "finish"])
def test_however_a_divided_job_ends_its_slots_are_free(
    asynchronous: bool, steps: int, end: str
) -> None:
    setup = Setup(FailingExecutor(asynchronous), MemoryCache(keeps=False))
    setup.submit_large(LARGE, rows=3, deadline_ms=1e6)
    for _ in range(steps):
        setup.runtime.step()
    assert len(setup.cache.free) == setup.cache.capacity - len(LARGE)
    if end == "abort":
        setup.runtime.abort("job-0")
    elif end == "expire":
        setup.runtime.expire(2e6, 1.0)
    elif end == "restart":
        setup.runtime.step(launch=False)
        setup.runtime.restart_waiting()
        setup.cache.check_idle()
    in_flight = setup.runtime.in_flight
    assert (setup.cache.outcomes == [""]) == (end == "finish" or in_flight > 0)
    setup.finish()
    wanted = {"abort": Status.ABORTED, "expire": Status.EXPIRED}.get(end, Status.OK)
    assert setup.answers == {"job-0": wanted}


@each_place
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_divided_job_that_fails_leaves_nothing_behind(
    asynchronous: bool, place: str, number: int
) -> None:
    setup = Setup(FailingExecutor(asynchronous))
    setattr(setup.executor, place, frozenset([number]))
    setup.submit_large(LARGE, rows=3)
    setup.finish()
    assert setup.answers == {"job-0": Status.FAILED}
    assert set(setup.cache.outcomes) == {"rollback"}
    assert not setup.committed


def test_a_prefix_for_which_there_is_never_room_goes_elsewhere_at_once() -> None:
    setup = Setup(FailingExecutor(), MemoryCache(capacity=199))
    setup.submit_large(LARGE, rows=3)
    assert setup.answers == {"job-0": Status.NO_ROOM}
    setup.submit_large(LARGE[:199], rows=3)
    setup.finish()
    assert setup.answers["job-1"] is Status.OK


def test_a_prefix_that_is_not_held_between_forwards_needs_no_room() -> None:
    setup = Setup(FailingExecutor(), MemoryCache(capacity=10))
    setup.submit(PREFIX)
    setup.finish()
    assert setup.answers == {"job-0": Status.OK}


def test_a_prefix_for_which_there_is_no_room_now_goes_elsewhere() -> None:
    setup = Setup(FailingExecutor())
    taken = setup.cache.take(setup.cache.capacity - 150)
    assert taken is not None
    setup.submit_large(LARGE, rows=3)
    setup.submit([1])
    while setup.runtime.busy:
        setup.runtime.step()
    assert setup.answers == {"job-0": Status.NO_ROOM, "job-1": Status.OK}
    setup.cache.free += taken.tolist()
    setup.cache.check_idle()


@pytest.mark.parametrize("look", [1, 3])
def test_a_cache_that_cannot_be_looked_into_fails_that_job_alone(look: int) -> None:
    setup = Setup(FailingExecutor(), MemoryCache(failing_looks=frozenset([look])))
    setup.submit_large(LARGE, rows=3)
    setup.submit([1])
    setup.finish()
    assert setup.answers == {"job-0": Status.FAILED, "job-1": Status.OK}


@given(
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 12), st.lists(st.integers(1, 9), min_size=1)), max_size=6),
)
@example(asynchronous=False, shapes=[(3, [9, 9]), (10, [2, 9])])
def test_whoever_finds_room_alone_finds_some_in_company(
    asynchronous: bool, shapes: list[tuple[int, list[int]]]
) -> None:
    policy = replace(JOINING, budget=ForwardBudget(20))
    setup = Setup(FailingExecutor(asynchronous), MemoryCache(capacity=12, keeps=False), policy)
    for number, (prefix, lens) in enumerate(shapes):
        rows = [[100 + row] * length for row, length in enumerate(lens)]
        prompts = request([number] * prefix, *rows)
        setup.runtime.submit(f"job-{number}", prompts.pack(), None)
    setup.finish()
    assert list(setup.answers.values()) == [Status.OK] * len(shapes)


def test_forwards_in_flight_may_give_the_room_that_is_missing() -> None:
    executor = FailingExecutor(asynchronous=True, failing_waits=frozenset([1]))
    setup = Setup(executor, MemoryCache(capacity=210), ALONE)
    setup.submit(PREFIX)
    setup.runtime.step()
    setup.submit_large(LARGE, rows=3)
    setup.finish()
    assert setup.answers == {"job-0": Status.FAILED, "job-1": Status.OK}


FAMILY = st.builds(
    lambda length, end: [*PREFIX[:length], *[90] * end], st.integers(0, 20), st.integers(0, 2)
)
ITEMS = [[50 + item] * 18 for item in range(4)]
CALLS = st.lists(
    FAMILY
    | st.lists(st.sampled_from(ITEMS), min_size=2, max_size=3, unique_by=tuple).map(tuple)
    | st.sampled_from(["step", "abort"]),
    max_size=30,
)
FAILURES = st.frozensets(st.integers(1, 10), max_size=3)


@given(
    st.builds(FailingExecutor, st.booleans(), FAILURES, FAILURES),
    FAILURES,
    FAILURES,
    st.sampled_from([replace(JOINING, launch_tokens=100), ALONE, SMALL]),
    CALLS,
)
def test_whatever_happens_every_transaction_ends(
    executor: FailingExecutor,
    failing_begins: frozenset[int],
    failing_looks: frozenset[int],
    policy: SchedulingPolicy,
    calls: list[list[int] | tuple[list[int], ...] | str],
) -> None:
    cache = MemoryCache(failing_begins=failing_begins, failing_looks=failing_looks)
    setup = Setup(executor, cache, policy)
    submitted = 0
    for call in calls:
        if isinstance(call, (list, tuple)):
            rows = request(call) if isinstance(call, list) else request([], *call)
            setup.runtime.submit(f"job-{submitted}", rows.pack(), None)
            submitted += 1
        elif call == "step":
            setup.runtime.step()
        else:
            setup.runtime.abort("", everything=True)
    setup.finish()
    assert len(setup.answers) == submitted
