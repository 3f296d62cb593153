from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from bench.simulation.run import WARM_UP, Outcome, simulate
from bench.simulation.traffic import LENGTHS, CostModel, Traffic, draw_traffic
from bench.simulation.variants import ALONE, SHARED, VARIANTS, Variant
from sglang_prefill_ext.config import Order
from sglang_prefill_ext.scheduling.policy import SchedulingPolicy
from sglang_prefill_ext.scheduling.queue import JobQueue

COST = CostModel()
DEFAULT = Variant("default", Order.SRPT)


def _at(load: float, variant: Variant, requests: int = 600, shared: float = 0.0) -> Outcome:
    return simulate(variant, draw_traffic(load, requests, COST, 1, shared), COST)


def _named(name: str) -> Variant:
    return next(variant for variant in VARIANTS if variant.name == name)


def test_on_an_idle_device_nothing_is_slowed_down() -> None:
    length_class = np.arange(8) % len(LENGTHS)
    far_apart = Traffic(0.0, 0.0, np.linspace(0, 1e6, 8), length_class, np.full(8, -1))
    for variant in VARIANTS:
        outcome = simulate(variant, far_apart, COST)
        assert outcome.mean_slowdown == pytest.approx(1.0)
        assert outcome.requests_per_forward == 1.0
        assert outcome.longest_p99_ms == pytest.approx(COST.forward_ms(LENGTHS[-1]))


def test_first_come_first_served_agrees_with_the_recursion_of_waiting_times() -> None:
    cost = CostModel(launch_ms=3.0, ms_per_token=0.01, ms_per_row=0.5)
    traffic = draw_traffic(0.9, 1_000, cost, seed=3)
    service_ms = 3.0 + 0.01 * traffic.lengths + 0.5
    waits, wait = [], 0.0
    gaps = np.diff(traffic.arrival_ms, append=np.inf)
    for served, gap in zip(service_ms, gaps, strict=True):
        waits.append(wait)
        wait = max(0.0, wait + served - gap)
    slowdown = (np.array(waits) + service_ms) / service_ms
    outcome = simulate(ALONE, traffic, cost)
    assert outcome.mean_slowdown == pytest.approx(slowdown[int(WARM_UP * 1_000) :].mean())
    for number, length in enumerate(LENGTHS):
        chosen = slowdown[int(WARM_UP * 1_000) :][traffic.length_class[100:] == number]
        assert outcome.class_slowdown[length] == pytest.approx(chosen.mean())


@pytest.mark.parametrize("shared", [0.0, 0.7])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_no_order_breaks_its_promise(variant: Variant, shared: float) -> None:
    outcome = _at(1.2, variant, shared=shared)
    promises = variant.order in (Order.FCFS, Order.SRPT)
    assert outcome.bound_violations == (0 if promises else None)
    assert (outcome.cached_share > 0) == (shared > 0)


@dataclass(frozen=True, slots=True)
class LastComeFirstServed(SchedulingPolicy):
    def new_queue(self) -> JobQueue:
        return JobQueue(lambda job: (-job.number,))


@dataclass(frozen=True, slots=True)
class Pretender(Variant):
    """Has the promise of one order, but serves in another one."""

    def policy(self, processed_tokens: Callable[[], int], measured_launch: int) -> SchedulingPolicy:
        policy = Variant.policy(self, processed_tokens, measured_launch)
        return LastComeFirstServed(
            policy.budget, policy.order, policy.ageing, policy.launch_tokens, policy.limits
        )


@pytest.mark.parametrize("order", [Order.FCFS, Order.SRPT])
def test_a_broken_promise_is_noticed(order: Order) -> None:
    outcome = _at(0.98, Pretender("pretender", order, ageing=1, launch_tokens=0), requests=2_000)
    assert outcome.bound_violations


def test_a_request_whose_prefix_is_cached_takes_less_time() -> None:
    length_class = np.arange(8) % len(LENGTHS)
    twice = Traffic(0.0, 1.0, np.linspace(0, 1e6, 8), length_class, np.zeros(8, dtype=np.int64))
    outcome = simulate(SHARED, twice, COST)
    assert outcome.cached_share == pytest.approx(1 / 4)
    # The first request is left out as the warm-up, so its length is seen with a cached prefix.
    for length, hits in zip(LENGTHS, (1.0, 0.5, 0.5, 0.5), strict=True):
        faster = COST.forward_ms(length / 2) / COST.forward_ms(length)
        assert outcome.class_slowdown[length] == pytest.approx(1 - hits + hits * faster)


def test_longest_prefix_first_is_first_come_first_served_where_nothing_is_cached() -> None:
    lpm, fcfs = (_at(1.2, _named(name)) for name in ("lpm", "fcfs"))
    assert replace(lpm, variant="", bound_violations=0) == replace(fcfs, variant="")


def test_highest_response_ratio_lies_between_fcfs_and_shortest_first() -> None:
    fcfs, hrrn, shortest = (
        _at(1.3, _named(name), requests=2_000).mean_slowdown
        for name in ("fcfs", "hrrn", "priority, short first")
    )
    assert shortest < hrrn < fcfs


def test_more_ageing_is_better_for_short_prompts_and_worse_for_long_ones() -> None:
    little, much = (_at(1.3, replace(DEFAULT, ageing=ageing), requests=2_000) for ageing in (1, 50))
    assert much.class_slowdown[LENGTHS[0]] < little.class_slowdown[LENGTHS[0]]
    assert much.longest_p99_ms > little.longest_p99_ms


def test_the_defaults_keep_slowdown_low_and_long_prompts_served() -> None:
    alone, shared, default = (_at(0.95, each, requests=4_000) for each in (ALONE, SHARED, DEFAULT))
    assert alone.mean_slowdown > 10
    assert default.mean_slowdown < min(3.0, shared.mean_slowdown)
    assert default.longest_p99_ms < 1.2 * shared.longest_p99_ms < alone.longest_p99_ms
