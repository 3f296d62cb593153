from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.config import Order, PrefillOnlyConfig
from sglang_prefill_ext.scheduling.budget import UNLIMITED, ForwardBudget, QueueLoad
from sglang_prefill_ext.scheduling.policy import IterationPolicy, SchedulingPolicy, policy_of


def test_every_flag_reaches_its_place() -> None:
    config = PrefillOnlyConfig(
        order=Order.DEADLINE,
        ageing=12,
        launch_tokens=13,
        max_queued_tokens=14,
        max_queued_rows=15,
        max_queued_mib=16,
    )
    assert policy_of(config, ForwardBudget(11), launch_tokens=99) == SchedulingPolicy(
        budget=ForwardBudget(11),
        order=Order.DEADLINE,
        ageing=12,
        launch_tokens=13,
        limits=QueueLoad(tokens=14, rows=15, bytes=16 * 1024 * 1024),
    )


def test_what_a_launch_costs_is_measured_unless_given() -> None:
    assert policy_of(PrefillOnlyConfig(), ForwardBudget(11), launch_tokens=99).launch_tokens == 99


POLICIES = st.builds(
    IterationPolicy,
    step_tokens=st.integers(1, 20),
    slowdown=st.sampled_from([1.1, 1.5, 2.0, 3.0]),
    launch_tokens=st.integers(0, 10),
    max_wait_steps=st.integers(0, 8),
)
WAITING = st.lists(st.integers(0, 30), min_size=1, max_size=60)
"""Tokens of the piece that waits before each decode step, if the one before has run."""


def _costs(
    policy: IterationPolicy, waiting: list[int], joiners: int
) -> tuple[list[int], list[int]]:
    """Run decode steps with packed work before them.

    Returns:
        The cost of packed work before each step, and how many steps each forward had waited.
    """
    policy = replace(policy)  # that has saved up nothing
    costs, waits = [], []
    tokens = waited = 0
    for arriving in waiting:
        tokens = tokens or arriving
        join = policy.join_tokens(tokens, decoding=True)
        if join is None:
            costs.append(0)
            waited += bool(tokens)
            continue
        taken = max(tokens, min(tokens + joiners, join))
        costs.append(policy.launch_tokens + taken)
        waits.append(waited)
        tokens = waited = 0
    return costs, waits


@given(POLICIES, WAITING, st.integers(0, 50))
def test_packed_work_waits_for_a_bounded_number_of_steps(
    policy: IterationPolicy, waiting: list[int], joiners: int
) -> None:
    _, waits = _costs(policy, waiting, joiners)
    assert max(waits, default=0) <= policy.max_wait_steps


@given(POLICIES, WAITING, st.integers(0, 50))
def test_no_gap_holds_more_than_the_allowance_or_one_forward(
    policy: IterationPolicy, waiting: list[int], joiners: int
) -> None:
    costs, _ = _costs(policy, waiting, joiners)
    assert max(costs) <= max(policy.allowance, policy.launch_tokens + max(waiting))


@given(POLICIES, WAITING, st.integers(0, 50))
def test_over_many_steps_packed_work_keeps_to_its_allowance(
    policy: IterationPolicy, waiting: list[int], joiners: int
) -> None:
    patient = replace(policy, max_wait_steps=len(waiting))
    costs, _ = _costs(patient, waiting, joiners)
    largest = policy.launch_tokens + max(waiting)
    sums = list(accumulate(costs, initial=0))
    for (first, before), (last, after) in combinations(enumerate(sums), 2):
        assert after - before <= (last - first) * policy.allowance + largest


def test_the_allowance_is_saved_up_for_a_large_forward() -> None:
    policy = IterationPolicy(10, 2.0, launch_tokens=5, max_wait_steps=100)
    decisions = [policy.join_tokens(30, decoding=True) for _ in range(8)]
    assert decisions == [None, None, None, 30, None, None, None, 30]


def test_others_join_as_far_as_the_allowance_goes() -> None:
    policy = IterationPolicy(10, 3.0, launch_tokens=5, max_wait_steps=100)
    assert policy.join_tokens(4, decoding=True) == 15
    for _ in range(5):
        assert policy.join_tokens(0, decoding=True) is None
    assert policy.join_tokens(4, decoding=True) == 15, "idle steps save nothing up"


def test_what_was_saved_up_is_lost_once_nothing_waits() -> None:
    policy = IterationPolicy(10, 2.0, launch_tokens=0, max_wait_steps=100)
    assert [policy.join_tokens(tokens, decoding=True) for tokens in (30, 0, 15)] == [None] * 3


def test_after_its_longest_wait_a_forward_runs_in_any_case() -> None:
    policy = IterationPolicy(1, 2.0, launch_tokens=0, max_wait_steps=3)
    waits = [policy.join_tokens(100, decoding=True) is None for _ in range(8)]
    assert waits == [True, True, True, False] * 2


def test_without_decode_requests_packed_work_never_waits() -> None:
    policy = IterationPolicy(1, 1.1, launch_tokens=5, max_wait_steps=100)
    assert policy.join_tokens(10**6, decoding=False) == UNLIMITED
    assert policy.join_tokens(0, decoding=False) is None


@pytest.mark.parametrize(
    ("launch_tokens", "prefix_len", "least"), [(0, 31, 0), (160, 40, 10), (160, 640, 20)]
)
def test_rows_behind_long_prefixes_must_find_more(
    launch_tokens: int, prefix_len: int, least: int
) -> None:
    policy = policy_of(PrefillOnlyConfig(), ForwardBudget(11), launch_tokens=launch_tokens)
    assert policy.least_row_tokens(prefix_len) == least
