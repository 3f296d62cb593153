from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sglang_prefill_ext.config import Order
from sglang_prefill_ext.scheduling import prefixed_forward
from sglang_prefill_ext.scheduling.budget import ForwardBudget, QueueLoad
from sglang_prefill_ext.scheduling.graph_room import ForwardSize, GraphCost
from sglang_prefill_ext.scheduling.job import Job
from sglang_prefill_ext.scheduling.policy import SchedulingPolicy
from sglang_prefill_ext.scheduling.prefixed_forward import NoRoomError, PrefixedForward
from sglang_prefill_ext.scheduling.row_transactions import RowRoom
from tests.unit.scheduling.caches import MemoryCache
from tests.unit.scheduling.jobs import job_of, job_of_rows, request

SHORT, LONG, OTHER = [1, 2], [1, 2, 3, 4], [7, 8, 9]


def warm(*prefixes: list[int]) -> MemoryCache:
    """A cache with these prefixes, and with an empty record of calls."""
    cache = MemoryCache()
    for prefix in prefixes:
        transaction = cache.begin(np.array(prefix, dtype=np.int32), keep=False)
        transaction.reserve(whole=False)
        transaction.commit()
    cache.begun.clear()
    cache.keep_asked.clear()
    return cache


def as_lists(slots: list[Any]) -> list[list[int] | None]:
    return [None if each is None else each.tolist() for each in slots]


def test_equal_prefixes_share_a_transaction() -> None:
    cache = MemoryCache()
    jobs = [job_of(request(prefix)) for prefix in (LONG, OTHER, LONG)]
    prefixed = PrefixedForward(jobs, cache)
    assert cache.outcomes == ["", ""]
    assert as_lists(prefixed.plan.stores) == [each.slots.tolist() for each in cache.begun]
    assert prefixed.plan.held == [None, None]
    assert prefixed.num_cached == 0


def test_each_adapter_has_its_own_prefixes() -> None:
    cache = MemoryCache()
    for _ in range(2):
        jobs = [job_of(replace(request(LONG), adapter=each)) for each in ("b", "a", "b")]
        prefixed = PrefixedForward(jobs, cache)
        assert prefixed.plan.adapters == ("a", "b")
        prefixed.commit()
    assert [each.cached for each in cache.begun] == [0, 0, len(LONG), len(LONG)]
    assert cache.adapters == ["b", "a"] * 2


def test_what_is_cached_is_held_and_the_rest_stored() -> None:
    cache = warm(SHORT, OTHER)
    jobs = [job_of(request(prefix)) for prefix in (LONG, OTHER, [5])]
    prefixed = PrefixedForward(jobs, cache)
    longer, whole, new = cache.begun
    assert longer.slots[:2].tolist() == cache.committed[tuple(SHORT)].tolist()
    assert as_lists(prefixed.plan.held) == [longer.slots[:2].tolist(), whole.slots.tolist(), None]
    assert as_lists(prefixed.plan.stores) == [longer.slots[2:].tolist(), None, new.slots.tolist()]
    assert [(group.held, group.fresh) for group in prefixed.plan.layout.groups] == [
        (2, 2),
        (3, 0),
        (0, 1),
    ]
    assert prefixed.plan.token_ids.tolist() == [3, 4, 9, 9, 5, 9]
    assert prefixed.num_cached == 5
    assert [prefixed.cached(job) for job in jobs] == [2, 3, 0]
    storing = [prefixed.is_storing(job.piece.prefix_key) for job in jobs]
    assert storing == [True, False, True]
    assert not prefixed.is_storing(None)


def test_one_marked_request_is_enough_to_keep_a_prefix() -> None:
    cache = MemoryCache()
    jobs = [job_of(request(OTHER)), job_of(request(LONG)), job_of(request(LONG), keep_prefix=True)]
    PrefixedForward(jobs, cache)
    assert cache.keep_asked == [False, True]


def test_a_cache_that_only_reads_stores_nothing() -> None:
    cache = warm(SHORT)
    cache.keeps = False
    prefixed = PrefixedForward([job_of(request(LONG))], cache)
    assert as_lists(prefixed.plan.held) == [cache.committed[tuple(SHORT)].tolist()]
    assert prefixed.plan.stores == [None]


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_all_transactions_end_together(outcome: str) -> None:
    cache = MemoryCache()
    prefixed = PrefixedForward([job_of(request(prefix)) for prefix in (LONG, OTHER, LONG)], cache)
    getattr(prefixed, outcome)()
    assert cache.outcomes == [outcome, outcome]
    assert set(cache.committed) == ({tuple(LONG), tuple(OTHER)} if outcome == "commit" else set())


def test_where_one_cannot_begin_the_others_are_rolled_back() -> None:
    cache = MemoryCache(failing_begins=frozenset([3]))
    with pytest.raises(MemoryError):
        PrefixedForward([job_of(request(prefix)) for prefix in (LONG, OTHER, [5])], cache)
    assert cache.outcomes == ["rollback", "rollback"]


def test_a_forward_that_cannot_be_planned_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(pieces: object) -> None:
        raise MemoryError

    monkeypatch.setattr(prefixed_forward, "plan_forward", fail)
    cache = MemoryCache()
    with pytest.raises(MemoryError):
        PrefixedForward([job_of(request(LONG))], cache)
    assert cache.outcomes == ["rollback"]


def test_rows_without_a_prefix_leave_the_cache_alone() -> None:
    cache = warm(SHORT)
    prefixed = PrefixedForward([job_of(request())], cache)
    assert prefixed.plan.held == prefixed.plan.stores == [None]
    assert prefixed.num_cached == 0
    assert cache.begun == []


ROWS = request([1], *[[row] * 20 for row in (5, 6, 7)])
CACHED_ROWS = [[1, *[row] * 19] for row in (5, 6, 7)]


GRAPHS = GraphCost(tokens=64, eager_tokens=500)
LAUNCH_TOKENS = 100


def policy_of(graphs: GraphCost, launch_tokens: int = LAUNCH_TOKENS) -> SchedulingPolicy:
    budget, limits = ForwardBudget(1000), QueueLoad(0, 0, 0)
    return SchedulingPolicy(budget, Order.SRPT, 1, launch_tokens, limits, graphs=graphs)


def job_with_rows() -> Job:
    """A job whose rows came before, each up to its last token."""
    return job_of(ROWS, rows_seen=np.array([20] * 3))


@pytest.mark.parametrize(
    ("others", "own", "replayed"), [(0, 3, True), (2, 2, True), (4, 0, True), (5, 3, False)]
)
def test_groups_of_rows_do_not_end_the_replay_of_a_forward(
    others: int, own: int, replayed: bool
) -> None:
    graphs = GraphCost(tokens=80, eager_tokens=6000, most_held=1000)  # five groups
    cache = warm(*CACHED_ROWS)
    jobs = [job_with_rows(), *(job_of(request([30 + n], [4], [5])) for n in range(others))]
    prefixed = PrefixedForward.cheapest(jobs, cache, policy_of(graphs))
    layout = prefixed.plan.layout
    assert graphs.hold(ForwardSize.of(layout.groups)) == replayed
    assert sum(group.held == 20 for group in layout.groups) == own
    prefixed.commit()
    cache.check_idle()


@pytest.mark.parametrize(
    ("graphs", "held"),
    [
        (GraphCost(), [20, 20, 20]),
        (GraphCost(tokens=64, most_held=64), [20, 20, 20]),
        (GraphCost(tokens=64, most_held=41), [1, 20, 20]),
        (GraphCost(tokens=64, most_held=19), [1]),
        # One more group saves at most 19 of 60 tokens, and 41 are too long for the graphs.
        (GraphCost(tokens=41, most_held=41), [1, 20]),
        (GraphCost(tokens=40, most_held=41), [20, 20, 20]),
        (GraphCost(tokens=60, most_held=0), [1]),
        (GraphCost(tokens=59, most_held=0), [20, 20, 20]),
    ],
    ids=["eager", "room", "some_room", "no_room", "short", "long", "no_pool", "long_no_pool"],
)
def test_rows_have_groups_of_their_own_as_far_as_graphs_can_read_them(
    graphs: GraphCost, held: list[int]
) -> None:
    cache = warm(*CACHED_ROWS)
    prefixed = PrefixedForward.cheapest([job_with_rows()], cache, policy_of(graphs))
    assert sorted(group.held for group in prefixed.plan.layout.groups) == held
    assert prefixed.num_cached == 1 + 19 * held.count(20)
    prefixed.commit()
    cache.check_idle()


def test_rows_that_no_graph_can_replay_have_no_bound_of_graphs() -> None:
    rows = replace(ROWS, adapter="a")
    job = job_of(rows, rows_seen=np.array([20] * 3))
    cache = MemoryCache()
    for prefix in (*CACHED_ROWS, [1]):
        transaction = cache.begin(np.array(prefix, dtype=np.int32), "a", keep=False)
        transaction.reserve(whole=False)
        transaction.commit()
    policy = policy_of(GraphCost(tokens=64, most_held=41))
    prefixed = PrefixedForward.cheapest([job], cache, policy)
    assert [group.held for group in prefixed.plan.layout.groups] == [20, 20, 20]


def test_no_more_rows_begin_than_there_is_room_for() -> None:
    cache = warm(*CACHED_ROWS)
    prefixed = PrefixedForward([job_with_rows()], cache, RowRoom(30))
    # The prefix, a row that joins, and the first one without room.
    assert cache.outcomes == ["", "", "rollback"]
    assert sorted(group.held for group in prefixed.plan.layout.groups) == [1, 20]


def test_no_row_begins_before_the_shared_prefix_is_cached() -> None:
    cache = MemoryCache()
    PrefixedForward([job_with_rows()], cache, RowRoom(100)).commit()
    assert cache.outcomes == ["commit"]
    PrefixedForward([job_with_rows()], cache, RowRoom(100)).commit()
    assert cache.outcomes == ["commit"] * 5
    alike = request([1], *[[5] * 18 + [row] * 2 for row in (5, 6, 7)])
    job, cache = job_of(alike, rows_seen=np.array([19, 19, 0])), MemoryCache()
    prefixed = PrefixedForward([job], cache, RowRoom(100))
    groups = prefixed.plan.layout.groups
    assert [(group.fresh, group.num_rows) for group in groups] == [(1, 1), (19, 2)]


def test_rows_that_begin_alike_go_on_from_what_the_cache_has_of_their_prefix() -> None:
    rows = request([*range(10)], [50, 51, 52, 60], [50, 51, 52, 61], [70])
    job = job_of(rows, rows_seen=np.array([13, 13, 0]))
    prefixed = PrefixedForward([job], warm([*range(6)]), RowRoom(100))
    groups = prefixed.plan.layout.groups
    assert [(group.held, group.fresh, group.num_rows) for group in groups] == [(6, 4, 1), (6, 7, 2)]


@pytest.mark.parametrize(("most_added", "joining"), [(0, 0), (1, 0), (5, 2), (6, 3), (100, 3)])
def test_rows_compute_the_end_of_a_prefix_that_is_no_whole_page(
    most_added: int, joining: int
) -> None:
    rows = request([1, 1], *[[row] * 16 for row in (5, 6, 7)])
    cache, job = MemoryCache(), job_of(rows, rows_seen=np.array([16] * 3))
    cache.page_tokens = 4
    prefixed = PrefixedForward([job], cache, RowRoom(100, added=most_added))
    assert sum(group.fresh == 16 for group in prefixed.plan.layout.groups) == joining
    assert prefixed.plan.num_tokens == 3 * 16 + 2 * min(joining + 1, 3)
    prefixed.commit()
    again = PrefixedForward([job], cache, RowRoom(100))
    assert sum(group.held == 16 for group in again.plan.layout.groups) == joining


def test_jobs_of_a_forward_add_no_more_than_it_may_have() -> None:
    suffixes, seen = [[row] * 16 for row in (5, 6, 7)], np.array([16] * 3)
    jobs = [job_of(request([first, 1], *suffixes), rows_seen=seen) for first in (1, 2)]
    cache = MemoryCache()
    cache.page_tokens = 4
    prefixed = PrefixedForward(jobs, cache, RowRoom(200, added=5))
    assert sum(group.fresh == 16 for group in prefixed.plan.layout.groups) == 2


def test_jobs_spend_what_the_cache_has_of_their_prefix_once() -> None:
    rows = request([1, 2, 3], *[[row] * 18 for row in (5, 6, 7)])
    jobs = [job_of(rows, rows_seen=np.array([20] * 3)) for rows in (rows, rows)]
    jobs[1].rows_seen, cache = np.array([19] * 3), warm([1, 2])
    cache.page_tokens = 2
    prefixed = PrefixedForward(jobs, cache, RowRoom(100))
    counted = sum(job.piece.num_tokens for job in jobs) - 3
    assert prefixed.plan.num_tokens <= counted


def test_jobs_of_a_forward_share_rows() -> None:
    jobs = [job_with_rows(), job_with_rows()]
    prefixed = PrefixedForward(jobs, warm(*CACHED_ROWS[:2], [1]), RowRoom(200))
    computed = [(group.held, group.fresh) for group in prefixed.plan.layout.groups]
    assert sorted(computed) == [(1, 19), (20, 0), (20, 0)]
    assert [share.num_tokens for share in prefixed.shares] == [3 + 19, 3]
    places = [share.values.tolist() for share in prefixed.shares]  # type: ignore[union-attr]
    assert sorted(place for each in places for place in each) == [*range(6)]


def test_where_a_row_cannot_begin_the_prefix_is_rolled_back() -> None:
    cache = warm(*CACHED_ROWS)
    cache._failing_begins = frozenset([cache._begins + 3])
    with pytest.raises(MemoryError):
        PrefixedForward([job_with_rows()], cache, RowRoom(100))
    assert cache.outcomes == ["rollback", "rollback"]


def test_what_uses_no_cache_is_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    planned, plan = [], prefixed_forward.plan_forward

    def noted(pieces: Any) -> Any:
        planned.append(pieces)
        return plan(pieces)

    monkeypatch.setattr(prefixed_forward, "plan_forward", noted)
    PrefixedForward.cheapest([job_of(request())], warm(SHORT), policy_of(GRAPHS))
    assert len(planned) == 1


@pytest.mark.parametrize("cached", [LONG, SHORT, OTHER])
def test_short_forwards_go_without_a_cache_that_graphs_cannot_use(cached: list[int]) -> None:
    cache, jobs = warm(cached), [job_of(request(LONG)), job_of(request(OTHER))]
    prefixed = PrefixedForward.cheapest(jobs, cache, policy_of(GRAPHS))
    assert cache.outcomes == ["rollback", "rollback"]
    assert prefixed.plan.held == prefixed.plan.stores == [None, None]
    assert prefixed.plan.token_ids.tolist() == [*LONG, 9, *OTHER, 9]
    assert prefixed.num_cached == 0
    prefixed.commit()
    assert set(cache.committed) == {tuple(cached)}


def test_a_wanted_prefix_is_stored_first_and_then_not_read() -> None:
    cache, plans = MemoryCache(), []
    for _ in range(2):
        jobs = [job_of(request(OTHER)), job_of(request(LONG), keep_prefix=True)]
        prefixed = PrefixedForward.cheapest(jobs, cache, policy_of(GRAPHS))
        plans.append(prefixed.plan)
        prefixed.commit()
    assert None not in plans[0].stores
    assert plans[1].held == plans[1].stores == [None, None]


@pytest.mark.parametrize(
    ("graphs", "launch_tokens", "job"),
    [
        (replace(GRAPHS, most_held=64), LAUNCH_TOKENS, job_of(request(LONG))),
        (GRAPHS, 495, job_of(request(LONG))),  # an eager forward costs no more
        (replace(GRAPHS, tokens=4), LAUNCH_TOKENS, job_of(request(LONG))),
        (GRAPHS, LAUNCH_TOKENS, job_of(replace(request(LONG), adapter="a"))),
        (GRAPHS, LAUNCH_TOKENS, job_of(request(LONG, [8], [9]), budget=3)),  # divided
    ],
)
def test_the_cache_is_used_where_that_may_be_cheaper_or_has_to_be(
    graphs: GraphCost, launch_tokens: int, job: Job
) -> None:
    cache = warm(SHORT)
    PrefixedForward.cheapest([job], cache, policy_of(graphs, launch_tokens))
    assert cache.outcomes == [""]


def divided_job(cached: int = 0, budget: int = 3) -> Job:
    rows = request(LONG, [8], [9]).pack()
    return job_of_rows(rows, ForwardBudget(budget), cached)


@pytest.mark.parametrize("cached", [0, 2])
def test_a_divided_job_has_one_transaction_of_its_own(cached: int) -> None:
    cache, divided = warm(SHORT[:cached]) if cached else MemoryCache(), divided_job(cached)
    stored = []
    while not divided.launched:
        span = divided.piece.span
        prefixed = PrefixedForward([divided], cache)
        (transaction,) = cache.begun
        assert divided.held is transaction
        assert transaction.whole
        slots = transaction.slots.tolist()
        assert len(slots) == len(LONG)
        assert as_lists(prefixed.plan.held) == [slots[: span.held] or None]
        stored += (as_lists(prefixed.plan.stores)[0]) or []
        assert prefixed.num_cached == prefixed.cached(divided)
        assert prefixed.num_cached == (0 if divided.next_piece else cached)
        assert not prefixed.is_storing(divided.piece.prefix_key)
        prefixed.commit()
        assert cache.outcomes == [""]
        divided.next_piece += 1
    assert stored == slots[cached:]


def test_a_large_job_of_which_enough_is_cached_is_like_a_small_one() -> None:
    cache, large = warm(LONG), divided_job(cached=4)
    assert not large.divided
    prefixed = PrefixedForward([large], cache)
    assert large.held is None
    assert [(group.held, group.fresh) for group in prefixed.plan.layout.groups] == [(4, 0)]
    prefixed.commit()
    assert cache.outcomes == ["commit"]


def test_where_there_is_no_room_for_a_prefix_nothing_is_begun() -> None:
    cache, divided = MemoryCache(capacity=5), divided_job()
    with pytest.raises(NoRoomError) as failure:
        PrefixedForward([job_of(request(SHORT)), divided], cache)
    assert failure.value.job is divided
    assert divided.held is not None
    divided.held.rollback()
    cache.check_idle()


def test_a_prefix_with_embeddings_is_held_and_not_cached() -> None:
    cache = warm(LONG)
    rows = request(LONG, [8], [9]).pack()
    tokens = rows.tokens.copy()
    tokens[1] = -1
    overridden = replace(rows, tokens=tokens, overrides=np.zeros((1, 4), np.float32))
    divided = job_of_rows(overridden, ForwardBudget(3))
    PrefixedForward([divided], cache).commit()
    (transaction,) = cache.begun
    assert (transaction.cached, len(transaction.slots), cache.keep_asked) == (0, 4, [])


def test_what_others_have_given_up_ends_with_the_forward_that_uses_it() -> None:
    cache, divided = MemoryCache(), divided_job()
    prefixed = PrefixedForward([divided], cache)
    assert divided.held is not None
    prefixed.ends_here.append(divided.held)
    prefixed.commit()
    assert cache.outcomes == ["rollback"]


def test_without_a_cache_the_plan_is_the_whole_forward() -> None:
    prefixed = PrefixedForward([job_of(request(LONG))], None)
    assert prefixed.plan.token_ids.tolist() == [*LONG, 9]
    assert (prefixed.plan.held, prefixed.plan.stores, prefixed.num_cached) == ([None], [None], 0)
    prefixed.commit()
