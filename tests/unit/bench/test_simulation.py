from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.simulation import (
    ALONE,
    LENGTHS,
    SHARED,
    VARIANTS,
    WARM_UP,
    CostModel,
    Outcome,
    Traffic,
    Variant,
    draw_traffic,
    simulate,
)
from sglang_prefill_ext.config import Order

COST = CostModel()
DEFAULT = Variant("default", Order.SRPT)


def _at(load: float, variant: Variant, requests: int = 600) -> Outcome:
    return simulate(variant, draw_traffic(load, requests, COST, seed=1), COST)


def test_a_load_of_one_is_what_single_requests_need() -> None:
    traffic = draw_traffic(1.0, 20_000, COST, seed=0)
    work_ms = COST.forward_ms(traffic.lengths).sum()
    assert work_ms == pytest.approx(traffic.arrival_ms[-1], rel=0.03)
    assert np.bincount(traffic.length_class) == pytest.approx(20_000 / len(LENGTHS), rel=0.05)


def test_on_an_idle_device_nothing_is_slowed_down() -> None:
    far_apart = Traffic(0.0, np.arange(1, 9) * 1e6, np.arange(8) % len(LENGTHS))
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


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_no_order_breaks_its_promise(variant: Variant) -> None:
    outcome = _at(1.2, variant)
    assert outcome.bound_violations == (None if variant.order is Order.PRIORITY else 0)


def test_more_ageing_is_better_for_short_prompts_and_worse_for_long_ones() -> None:
    little, much = (_at(1.3, replace(DEFAULT, ageing=ageing), requests=2_000) for ageing in (1, 50))
    assert much.class_slowdown[LENGTHS[0]] < little.class_slowdown[LENGTHS[0]]
    assert much.longest_p99_ms > little.longest_p99_ms


def test_the_defaults_keep_slowdown_low_and_long_prompts_served() -> None:
    alone, shared, default = (_at(0.95, each, requests=4_000) for each in (ALONE, SHARED, DEFAULT))
    assert alone.mean_slowdown > 10
    assert default.mean_slowdown < min(3.0, shared.mean_slowdown)
    assert default.longest_p99_ms < 1.15 * shared.longest_p99_ms < alone.longest_p99_ms
