from __future__ import annotations

import numpy as np
import pytest

from bench.fleet.policies import POLICIES
from bench.fleet.simulation import NOISE, Simulation
from bench.fleet.traffic import SCENARIOS, SPEED, Traffic
from sglang_prefill_ext.fleet.planning.cost import RowCosts


@pytest.mark.parametrize("policy", POLICIES)
def test_a_lone_request_takes_what_its_longest_part_does(policy: str) -> None:
    costs = RowCosts.of(60, [500] * 40)
    traffic = Traffic(0.1, np.array([1.0]), [costs])
    simulation = Simulation(policy, traffic, SCENARIOS["usual"], 4, 0)
    (latency_s,) = simulation.run()
    assert latency_s <= simulation.sent_s * np.exp(5 * NOISE)
    assert latency_s >= costs.part_s(SPEED) / 4 * np.exp(-5 * NOISE)


def test_one_replica_computes_one_part_after_the_other() -> None:
    costs = RowCosts.of(60, [500])
    traffic = Traffic(0.1, np.zeros(200), [costs] * 200)
    simulation = Simulation("random", traffic, SCENARIOS["usual"], 2, 0)
    latency_s = simulation.run()
    assert simulation.parts == 200
    longest = latency_s.max() / costs.part_s(SPEED)
    assert 100 * 0.95 < longest < 130
