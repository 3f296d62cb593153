"""Serve traffic by one policy in a simulation, and take its figures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.fleet.simulation import Simulation
from bench.fleet.traffic import Scenario, Traffic

WARM_UP = 0.1  # share of the requests that is left out of the figures


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of one policy on the traffic.

    Attributes:
        forward_tokens: most tokens of a forward.
        load: see `Traffic`.
        p50_ms, p99_ms: latency, from arrival to the answer of the last part.
        one_item_p50_ms: P50 of the requests with one item; None if there are none.
        extra_work: work of launches and prefixes that dividing repeats, over the work of all
            requests sent whole.
        parts: mean number of parts of a request.
        resent: number of parts that failed and were sent again.
    """

    policy: str
    workload: str
    scenario: str
    replicas: int
    forward_tokens: int
    load: float
    p50_ms: float
    p99_ms: float
    one_item_p50_ms: float | None
    extra_work: float
    parts: float
    resent: int


def simulate(
    policy: str, workload: str, scenario: Scenario, traffic: Traffic, replicas: int, seed: int
) -> Outcome:
    """Serve the traffic to its end."""
    simulation = Simulation(policy, traffic, scenario, replicas, seed)
    latency_s = simulation.run()
    first = int(WARM_UP * len(latency_s))
    counted_ms = latency_s[first:] * 1e3
    one_item = np.array([len(costs) == 1 for costs in traffic.requests[first:]])
    return Outcome(
        policy=policy,
        workload=workload,
        scenario=scenario.name,
        replicas=replicas,
        forward_tokens=traffic.speed.max_forward_tokens,
        load=traffic.load,
        p50_ms=float(np.percentile(counted_ms, 50)),
        p99_ms=float(np.percentile(counted_ms, 99)),
        one_item_p50_ms=float(np.percentile(counted_ms[one_item], 50)) if one_item.any() else None,
        extra_work=simulation.sent_s / float(traffic.whole_s.sum()) - 1,
        parts=simulation.parts / len(latency_s),
        resent=simulation.resent,
    )
