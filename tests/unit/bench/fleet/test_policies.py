from __future__ import annotations

import numpy as np
import pytest

from bench.fleet.policies import POLICIES, Policy
from bench.fleet.traffic import SPEED
from sglang_prefill_ext.fleet.planning.cost import RowCosts
from sglang_prefill_ext.fleet.planning.planner import ReplicaState


class Idle:
    """A fleet in which nothing happens."""

    load = 0.5
    speed = SPEED

    def states(self, now_s: float) -> list[ReplicaState]:
        return [ReplicaState(0.0, SPEED) for _ in range(4)]


def policy_of(name: str) -> Policy:
    return POLICIES[name](4, np.random.default_rng(0), Idle())


def chosen(policy: Policy, count: int) -> list[int]:
    return [policy.send(RowCosts.of(0, [10]), 0.0)[0].replica for _ in range(count)]


@pytest.mark.parametrize("name", POLICIES)
def test_every_row_is_sent_once(name: str) -> None:
    policy = policy_of(name)
    for items in (1, 16, 17, 100):
        parts = policy.send(RowCosts.of(60, [500] * items), 0.0)
        rows = np.concatenate([part.rows for part in parts])
        assert sorted(rows.tolist()) == list(range(items))
        assert all(0 <= part.replica < 4 for part in parts)
        for part in parts:
            policy.ended(part, 1.0, ok=True)


def test_round_robin_takes_turns() -> None:
    assert sorted(chosen(policy_of("round robin"), 8)) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_least_requests_fills_up_evenly() -> None:
    assert sorted(chosen(policy_of("least requests"), 8)) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_power_of_two_avoids_the_fullest() -> None:
    counts = np.bincount(chosen(policy_of("power of two"), 400), minlength=4)
    assert np.ptp(counts) < 20


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "oracle"])
def test_what_has_failed_gets_nothing_until_it_is_revived(name: str) -> None:
    policy, costs = policy_of(name), RowCosts.of(60, [500] * 400)
    failed = policy.send(costs, 0.0)[0]
    policy.ended(failed, 0.0, ok=False)
    later = [part.replica for _ in range(40) for part in policy.send(costs, 0.5)]
    assert failed.replica not in later
    policy.revived(failed.replica, 0.5)
    later = [part.replica for _ in range(40) for part in policy.send(costs, 0.5)]
    assert failed.replica in later


@pytest.mark.parametrize(("name", "parts"), [("split by count, 16", 7), ("split by count, 64", 2)])
def test_split_by_count_makes_parts_of_equally_many(name: str, parts: int) -> None:
    sent = policy_of(name).send(RowCosts.of(60, [500] * 100), 0.0)
    counts = [len(part.rows) for part in sent]
    assert len(counts) == parts
    assert max(counts) - min(counts) <= 1
