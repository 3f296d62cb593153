"""Compare replicas that have all experts with GPUs that divide them, on the same requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bench.expert_parallelism.cost import Batch, Engine
from bench.fleet.run import simulate
from bench.fleet.traffic import MEAN_TOKENS, SCENARIOS, Traffic, draw_traffic
from sglang_prefill_ext.fleet.planning.assignment import assign
from sglang_prefill_ext.fleet.planning.cost import RowCosts, Rows
from sglang_prefill_ext.fleet.planning.planner import ReplicaState, allowed_extra_work, plan
from sglang_prefill_ext.sizing.parallelism import no_room

WORKLOAD, USUAL = "60+576x16..400", SCENARIOS["usual"]
QUERY_TOKENS = 60
LOAD = 0.7
LONE_ITEMS = (1, 16, 208)
"""Items of requests that come to an idle fleet; the last is the mean of the workload."""


@dataclass(frozen=True, slots=True)
class Side:
    """Predictions for one side.

    Attributes:
        weights_gb: weights on each GPU, in 10^9 bytes.
        why_not: why the side cannot serve the model; empty if it can.
        figures: the largest rate in requests/s, and latencies in ms: P50 and P99 at the rate of
            `Compared`, and those of lone requests. Empty if the side cannot serve.
    """

    weights_gb: float
    why_not: str
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Compared:
    """Predictions for both sides; nothing is measured.

    Attributes:
        ratios: for each figure, how many times better the fleet is; empty if a side cannot serve.
        busiest: rows of the busiest GPU's experts, over the mean of all GPUs.
        rate: offered requests/s: `LOAD` times the largest rate of the slower side that can serve;
            0 if neither can.
    """

    ratios: dict[str, float]
    busiest: float
    rate: float
    fleet: Side
    experts: Side


def compare(one: Engine, together: Engine, requests: int, seed: int) -> Compared:
    """Compare replicas like `one`, as many as `together` has GPUs, with `together`."""
    usual = draw_traffic(WORKLOAD, USUAL, LOAD, together.gpus, requests, seed, one.speed())
    sides = ((one, together.gpus, usual), (together, 1, replace(usual, speed=together.speed())))
    most = [replicas / float(traffic.whole_s.mean()) for _, replicas, traffic in sides]
    why_nots = [no_room(engine.serving.device, engine.weights_gb) for engine, _, _ in sides]
    serve = [each for each, why_not in zip(most, why_nots, strict=True) if not why_not]
    rate = LOAD * min(serve, default=0.0)
    found = []
    for (engine, replicas, traffic), own, why_not in zip(sides, most, why_nots, strict=True):
        figures = {}
        if not why_not:
            arrival_s = usual.arrival_s * (LOAD * most[0] / rate)
            scaled = replace(traffic, load=rate / own, arrival_s=arrival_s)
            figures = {"requests/s": own} | _latencies(engine, replicas, scaled, seed)
        found.append(Side(engine.weights_gb, why_not, figures))
    return Compared(ratios(*found), together.busiest, rate, *found)


def ratios(fleet: Side, experts: Side) -> dict[str, float]:
    """For each figure, how many times better the fleet is."""
    pairs = {
        name: (value, experts.figures[name])
        for name, value in fleet.figures.items()
        if experts.figures
    }
    return {
        name: own / other if name == "requests/s" else other / own
        for name, (own, other) in pairs.items()
    }


def lone_s(engine: Engine, replicas: int, items: int) -> float:
    """Seconds of a request to an idle fleet. The planner divides it over replicas; an engine with
    several GPUs divides it evenly over them."""
    costs = RowCosts.of(QUERY_TOKENS, np.full(items, MEAN_TOKENS))
    speed = engine.speed()
    if engine.gpus > 1:
        places = assign(costs.rows_s(speed), np.zeros(engine.gpus), np.ones(engine.gpus))
        rows = [np.flatnonzero(places == gpu) for gpu in range(engine.gpus)]
        return engine.request_s(batch_of(costs, rows))
    idle = [ReplicaState(0.0, speed)] * replicas
    parts = plan(costs, idle, extra_work=allowed_extra_work(0.0))
    return max(engine.request_s(batch_of(costs, [part.rows])) for part in parts)


def batch_of(costs: RowCosts, parts: Sequence[Rows]) -> Batch:
    """The work of each GPU for its rows; each GPU that has a row computes the prefix."""
    prefixes = np.array([float(len(rows) > 0) for rows in parts])
    return Batch(
        tokens=prefixes * costs.prefix_tokens + [costs.tokens[rows].sum() for rows in parts],
        pairs=prefixes * costs.prefix_pairs + [costs.pairs[rows].sum() for rows in parts],
    )


def _latencies(engine: Engine, replicas: int, traffic: Traffic, seed: int) -> dict[str, float]:
    served = simulate("planned", WORKLOAD, USUAL, traffic, replicas, seed)
    lone = {f"lone, {items}": 1e3 * lone_s(engine, replicas, items) for items in LONE_ITEMS}
    return {"P50": served.p50_ms, "P99": served.p99_ms} | lone
