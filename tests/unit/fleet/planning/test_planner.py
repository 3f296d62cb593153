from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from operator import add
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sglang_prefill_ext.fleet.planning import planner
from sglang_prefill_ext.fleet.planning.cost import UNLIMITED, RowCosts, Speed
from sglang_prefill_ext.fleet.planning.planner import (
    MAX_PARTS,
    Part,
    ReplicaState,
    allowed_extra_work,
    plan,
)

SPEED = Speed(launch_s=0.005, token_s=1 / 25_000, pair_s=1e-9)
NO_LIMIT = 1e9


def idle(count: int) -> list[ReplicaState]:
    return [ReplicaState(0.0, SPEED) for _ in range(count)]


def costs_s(
    costs: RowCosts, parts: Sequence[Part], replicas: Sequence[ReplicaState]
) -> list[float]:
    """Predicted seconds of each part, without the work that waits at its replica."""
    return [
        costs.part_s(each.speed, part.rows, prefix_cached=each.has_prefix)
        for part in parts
        for each in [replicas[part.replica]]
    ]


def end_of(costs: RowCosts, parts: Sequence[Part], replicas: Sequence[ReplicaState]) -> float:
    waiting_s = [replicas[part.replica].outstanding_s for part in parts]
    return max(map(add, waiting_s, costs_s(costs, parts, replicas)))


def whole_end(costs: RowCosts, replicas: Sequence[ReplicaState]) -> float:
    return min(
        each.outstanding_s + costs.part_s(each.speed, prefix_cached=each.has_prefix)
        for each in replicas
        if each.available
    )


_REPLICA = st.builds(
    ReplicaState,
    outstanding_s=st.floats(0, 0.2),
    speed=st.just(SPEED),
    has_prefix=st.booleans(),
    available=st.booleans(),
)
_FAST_OR_SLOW = st.builds(
    ReplicaState,
    outstanding_s=st.floats(0, 0.2),
    speed=st.floats(0.4, 3).map(SPEED.slowed),
    has_prefix=st.booleans(),
    available=st.booleans(),
)
_DIFFERENT = st.builds(
    ReplicaState,
    outstanding_s=st.floats(0, 2),
    speed=st.builds(
        Speed,
        st.floats(0, 0.5),
        st.floats(1e-4, 1e-3),
        st.floats(0, 1e-5),
        st.sampled_from([64, UNLIMITED]),
    ),
    has_prefix=st.booleans(),
)
_LENS = st.lists(st.integers(1, 2000), min_size=1, max_size=40)


@given(
    prefix=st.integers(0, 3000),
    lens=_LENS,
    replicas=st.lists(_FAST_OR_SLOW, max_size=9),
    extra_work=st.floats(0, 2),
)
def test_every_row_has_one_part_and_the_answer_is_no_later_than_whole(
    prefix: int, lens: list[int], replicas: list[ReplicaState], extra_work: float
) -> None:
    costs = RowCosts.of(prefix, lens)
    parts = plan(costs, replicas, extra_work=extra_work)
    if not any(each.available for each in replicas):
        assert parts == []
        return
    assert sorted(np.concatenate([part.rows for part in parts]).tolist()) == list(range(len(lens)))
    numbers = [part.replica for part in parts]
    assert numbers == sorted(set(numbers))
    for part in parts:
        assert replicas[part.replica].available
        assert (np.diff(part.rows) > 0).all()
    assert end_of(costs, parts, replicas) <= whole_end(costs, replicas) * (1 + 1e-9)


@given(
    prefix=st.integers(0, 300),
    lens=_LENS,
    waiting=st.lists(st.floats(0, 0.2), min_size=1, max_size=9),
    extra_work=st.floats(0, 2),
)
def test_no_more_extra_work_than_allowed(
    prefix: int, lens: list[int], waiting: list[float], extra_work: float
) -> None:
    costs = RowCosts.of(prefix, lens)
    replicas = [ReplicaState(each, SPEED) for each in waiting]
    parts = plan(costs, replicas, extra_work=extra_work)
    whole_s = costs.part_s(SPEED)
    sent_s = sum(costs_s(costs, parts, replicas))
    assert sent_s <= whole_s * (1 + extra_work) * (1 + 1e-9)


@given(
    prefix=st.integers(0, 500),
    lens=st.lists(st.integers(1, 2000), min_size=1, max_size=6),
    replicas=st.lists(_REPLICA, min_size=1, max_size=3),
)
def test_less_than_a_row_behind_the_optimum(
    prefix: int, lens: list[int], replicas: list[ReplicaState]
) -> None:
    costs = RowCosts.of(prefix, lens)
    able = [number for number, each in enumerate(replicas) if each.available]
    if not able:
        return
    best = min(
        end_of(costs, _parts(np.array(owner)), replicas)
        for owner in product(able, repeat=len(lens))
    )
    with patch.object(planner, "WORTH", 0):
        parts = plan(costs, replicas, extra_work=NO_LIMIT)
    found = end_of(costs, parts, replicas)
    longest_s = float(costs.rows_s(SPEED).max())
    assert best * (1 - 1e-9) <= found <= best + longest_s + 1e-9


def _parts(owner: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[Part]:
    return [Part(number, np.flatnonzero(owner == number)) for number in set(owner.tolist())]


def test_a_large_request_is_divided_evenly() -> None:
    costs = RowCosts.of(60, np.random.default_rng(0).integers(100, 1500, 400))
    parts = plan(costs, idle(8), extra_work=0.2)
    found_s = costs_s(costs, parts, idle(8))
    assert len(parts) == 8
    assert max(found_s) < 1.01 * min(found_s)
    prefix_s = SPEED.seconds(60, costs.prefix_pairs)
    assert sum(found_s) == pytest.approx(costs.part_s(SPEED) + 7 * prefix_s)


def test_a_small_request_stays_whole() -> None:
    slow_launch = [ReplicaState(0.0, Speed(0.03, 1 / 25_000))] * 4
    assert len(plan(RowCosts.of(60, [2] * 50), slow_launch, extra_work=NO_LIMIT)) == 1
    assert len(plan(RowCosts.of(60, [600]), idle(4), extra_work=NO_LIMIT)) == 1


def test_a_prefix_that_is_longer_than_the_rows_is_not_repeated_for_little() -> None:
    costs = RowCosts.of(12_000, [10] * 20)
    assert len(plan(costs, idle(8), extra_work=NO_LIMIT)) == 1


def test_a_full_fleet_keeps_whole_what_an_idle_one_divides() -> None:
    costs = RowCosts.of(120, [10] * 180)
    counts = [
        len(plan(costs, idle(8), extra_work=allowed_extra_work(each))) for each in (0, 0.5, 0.7, 1)
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 8
    assert counts[-1] == 1


def test_extra_work_leaves_half_of_what_idles() -> None:
    shares = np.linspace(0.05, 0.95, 19)
    allowed = np.array([allowed_extra_work(share) for share in shares])
    np.testing.assert_allclose(shares * (1 + allowed), (1 + shares) / 2)
    assert (np.diff([allowed_extra_work(share) for share in np.linspace(0, 1, 1001)]) <= 0).all()
    assert 0 < allowed_extra_work(1) < 0.05


def test_who_has_the_prefix_takes_it_until_others_are_sooner() -> None:
    costs = RowCosts.of(5000, [10])
    saved_s = costs.part_s(SPEED) - costs.part_s(SPEED, prefix_cached=True)
    for waits_s, home in ((0.9 * saved_s, 1), (1.1 * saved_s, 0)):
        replicas = [ReplicaState(0.0, SPEED), ReplicaState(waits_s, SPEED, has_prefix=True)]
        (part,) = plan(costs, replicas, extra_work=0)
        assert part.replica == home


def test_what_may_not_be_divided_stays_whole_even_where_that_adds_no_work() -> None:
    costs = RowCosts.of(5000, [500] * 40)
    free = Speed(0.0, 1 / 25_000)
    homes = [ReplicaState(0.1, free, has_prefix=True) for _ in range(2)]
    replicas = [ReplicaState(0.0, free), *homes]
    assert len(plan(costs, replicas, extra_work=0)) > 1
    assert len(plan(costs, replicas, extra_work=-1)) == 1


def test_a_replica_that_is_busy_for_long_gets_nothing() -> None:
    costs = RowCosts.of(60, [500] * 40)
    replicas = [*idle(2), ReplicaState(30.0, SPEED)]
    assert [part.replica for part in plan(costs, replicas, extra_work=NO_LIMIT)] == [0, 1]


def test_a_slow_replica_gets_less() -> None:
    costs = RowCosts.of(60, [500] * 40)
    replicas = [ReplicaState(0.0, SPEED), ReplicaState(0.0, SPEED.slowed(3))]
    counts = [len(part.rows) for part in plan(costs, replicas, extra_work=NO_LIMIT)]
    assert counts == [30, 10]


def test_no_more_parts_than_looked_at() -> None:
    costs = RowCosts.of(0, [3000] * 400)
    with patch.object(planner, "WORTH", 0):
        parts = plan(costs, idle(512), extra_work=NO_LIMIT)
    assert 1 < len(parts) <= MAX_PARTS


def test_equal_rows_end_as_soon_on_fewer_replicas() -> None:
    parts = plan(RowCosts.of(0, [2500] * 10), idle(9), extra_work=NO_LIMIT)
    assert [len(part.rows) for part in parts] == [2] * 5


def test_more_replicas_do_not_help_a_row_that_is_longer_than_all_others() -> None:
    assert len(plan(RowCosts.of(0, [20_000] + [100] * 100), idle(8), extra_work=NO_LIMIT)) == 2


@pytest.mark.parametrize(("allowed", "parts"), [(0.99, 1), (1.01, 2)])
def test_just_the_extra_work_that_is_allowed(allowed: float, parts: int) -> None:
    costs = RowCosts.of(500, [1000] * 4)
    extra_work = allowed * SPEED.seconds(500, costs.prefix_pairs) / costs.part_s(SPEED)
    replicas = [ReplicaState(0.0, SPEED), ReplicaState(0.0, SPEED.slowed(1.5))]
    assert len(plan(costs, replicas, extra_work=extra_work)) == parts


@pytest.mark.parametrize(("sooner", "parts"), [(0.9, 1), (1.1, 2)])
def test_extra_work_has_to_be_worth_it(sooner: float, parts: int) -> None:
    costs = RowCosts.of(0, [2000] * 2)
    waits_s = float(costs.rows_s(SPEED)[0]) - sooner * planner.WORTH * SPEED.launch_s
    replicas = [ReplicaState(0.0, SPEED), ReplicaState(waits_s, SPEED)]
    assert len(plan(costs, replicas, extra_work=NO_LIMIT)) == parts


def test_speeds_whose_attention_differs_are_charged_exactly() -> None:
    costs = RowCosts.of(100, np.random.default_rng(3).integers(10, 4000, 50))
    replicas = [ReplicaState(0.0, SPEED), ReplicaState(0.0, Speed(0.002, 1 / 12_000, 1e-8, 8192))]
    parts = plan(costs, replicas, extra_work=NO_LIMIT)
    ends = costs_s(costs, parts, replicas)
    assert max(ends) < 1.15 * min(ends)


@given(
    prefix=st.integers(0, 9),
    rows=st.integers(1, 40),
    replicas=st.lists(_DIFFERENT, min_size=1, max_size=5),
)
@example(
    prefix=9,  # no launch computes a cached one
    rows=1,
    replicas=[
        ReplicaState(0.1, Speed(0.1, 1e-4, max_forward_tokens=64), has_prefix=True),
        ReplicaState(0.3, Speed(0.1, 1e-4)),
    ],
)
def test_launches_tokens_and_pairs_decide_where_a_whole_request_goes(
    prefix: int, rows: int, replicas: list[ReplicaState]
) -> None:
    costs = RowCosts.of(64 * prefix, [64] * rows)
    parts = plan(costs, replicas, extra_work=-1.0)
    assert end_of(costs, parts, replicas) == pytest.approx(whole_end(costs, replicas))


@pytest.mark.parametrize(
    ("waiting", "saved", "place"),
    [
        ([5, 3, 3], [0, 0, 0], 1),  # the least, of equals the first
        ([5, 3, 3], [3, 0, 0], 0),  # what waits there beyond the least is less than it saves
        ([5, 3, 3], [2, 0, 0], 0),  # as much, and it is the first
        ([3, 3, 5], [0, 0, 2], 0),
        ([6, 3, 3], [2, 0, 0], 1),  # it is more
        ([6, 3, 5], [4, 0, 4], 2),  # of several who have it
    ],
)
def test_a_whole_request_goes_where_it_is_done_first(
    waiting: list[int], saved: list[int], place: int
) -> None:
    speed, costs = Speed(0.0, 1.0), RowCosts.of(max(saved), [1])
    replicas = [
        ReplicaState(waiting_s, speed, has_prefix=saved_s > 0)
        for waiting_s, saved_s in zip(waiting, saved, strict=True)
    ]
    (part,) = plan(costs, replicas, extra_work=-1.0)
    assert part.replica == place
