from __future__ import annotations

import pytest

from bench.fleet.run import Outcome, simulate
from bench.fleet.traffic import SCENARIOS, SPEED, draw_traffic
from sglang_prefill_ext.fleet.planning.cost import RowCosts

MANY = "60+576x16..400"


def outcome(
    policy: str, scenario: str = "usual", load: float = 0.7, requests: int = 300
) -> Outcome:
    traffic = draw_traffic(MANY, SCENARIOS[scenario], load, 8, requests, 0)
    return simulate(policy, MANY, SCENARIOS[scenario], traffic, 8, 0)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("policy", ["split by count, 16", "planned", "oracle"])
def test_every_request_is_answered_whatever_happens(policy: str, scenario: str) -> None:
    found = outcome(policy, scenario, requests=100)
    assert found.p99_ms >= found.p50_ms > 0
    assert found.resent == 0 or scenario == "one dies"


def test_it_is_the_same_again() -> None:
    assert outcome("planned", "one dies") == outcome("planned", "one dies")


def test_planning_beats_splitting_by_count_and_is_near_the_oracle() -> None:
    split, planned, oracle = (
        outcome(policy).p99_ms for policy in ("split by count, 16", "planned", "oracle")
    )
    assert planned < 0.8 * split
    assert planned < 1.2 * oracle


def test_a_slow_replica_is_learnt() -> None:
    planned, oracle = (outcome(each, "half speed").p99_ms for each in ("planned", "oracle"))
    assert planned < 1.3 * oracle


def test_extra_work_is_what_launches_and_prefixes_add() -> None:
    assert outcome("random", requests=50).extra_work == pytest.approx(0)
    found = outcome("split by count, 16", requests=50)
    traffic = draw_traffic(MANY, SCENARIOS["usual"], 0.7, 8, 50, 0)
    a_part_s = RowCosts.of(60, [1]).part_s(SPEED) - SPEED.token_s - SPEED.pair_s
    added_s = (found.parts - 1) * 50 * a_part_s
    # Whole requests are over the budget of a forward, and so are launched several times.
    assert found.extra_work < added_s / traffic.whole_s.sum()
