from __future__ import annotations

from dataclasses import replace

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


def order_of_answers(*requests: tuple[float, int]) -> list[int]:
    """Numbers of requests with a time of arrival and one row; forwards have 1,000 tokens and s."""
    speed = replace(SPEED, launch_s=0.0, token_s=1e-3, pair_s=0.0, max_forward_tokens=1000)
    arrival_s = np.array([at_s for at_s, _ in requests])
    costs = [RowCosts.of(0, [tokens]) for _, tokens in requests]
    traffic = Traffic(0.1, arrival_s, costs, speed)
    latency_s = Simulation("random", traffic, SCENARIOS["usual"], 1, 0).run()
    return np.argsort(arrival_s + latency_s).tolist()


def test_a_divided_part_is_queued_again_by_the_rest_of_its_tokens() -> None:
    assert order_of_answers((0.0, 3000), (0.5, 900)) == [1, 0]
    assert order_of_answers((0.0, 3000), (1.5, 900)) == [0, 1]


def test_a_divided_part_starts_once_the_one_that_has_begun_is_done() -> None:
    assert order_of_answers((0.0, 5000), (0.5, 1500), (0.5, 800)) == [2, 0, 1]
