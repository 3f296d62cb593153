from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from bench.simulation.decode_batch import Limits
from bench.simulation.decode_policies import Generation
from bench.simulation.decode_run import (
    REGIMES,
    STOCK,
    VARIANTS,
    WARM_UP,
    DecodeOutcome,
    DecodeServer,
    DecodeVariant,
    Regime,
    simulate_decode,
)
from bench.simulation.decode_traffic import DecodeCost, DecodeTraffic, draw_decode_traffic

COST = DecodeCost()
ONE = Limits(1, 1 << 20)
variants = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)


def _at(load: float, regime: Regime, variant: DecodeVariant, requests: int = 300) -> DecodeOutcome:
    traffic = draw_decode_traffic(load, requests, regime.sized_for, COST, seed=1)
    return simulate_decode(variant, regime, traffic, COST)


@variants
def test_every_token_is_generated_once_and_the_pool_is_never_exceeded(
    variant: DecodeVariant,
) -> None:
    rng = np.random.default_rng(0)
    outputs = rng.integers(1, 120, 80).tolist()
    sequences = [Generation(number, int(rng.integers(1, 80))) for number in range(80)]
    limits = Limits(max_running=6, pool_tokens=400, reserve_tokens=2)
    server = DecodeServer(variant, limits, COST)
    tokens: Counter[int] = Counter()
    computed = retracted = 0
    coming = list(sequences)
    while coming or server.unfinished:
        if coming and server.iterations % 5 == 0:
            server.submit(coming.pop(0))
        before = [each for each in sequences if each.resident]
        batch = server.step(outputs)
        retracted += sum(not each.resident and each not in batch for each in before)
        tokens.update(each.number for each in batch)
        computed += sum(each.tokens - 1 for each in batch if each not in before)
        assert all(each.generated == tokens[each.number] for each in batch)
        assert sum(each.tokens for each in sequences if each.resident) <= limits.pool_tokens
        assert len(batch) <= limits.max_running
    assert tokens == Counter(dict(enumerate(outputs)))
    assert server.tokens == sum(outputs)
    assert server.prefill_tokens == computed
    assert retracted


@variants
def test_on_an_idle_device_nothing_is_slowed_down(variant: DecodeVariant) -> None:
    prompts, outputs = np.array([1, 300, 2000]), np.array([1, 60, 900])
    traffic = DecodeTraffic(0.0, np.linspace(1, 1e6, 3), prompts, outputs)
    outcome = simulate_decode(variant, REGIMES[0], traffic, COST)
    assert outcome.mean_slowdown == pytest.approx(1.0)
    assert (outcome.recomputed, outcome.mean_batch) == (0.0, 1.0)


def test_stock_with_one_slot_agrees_with_the_recursion_of_waiting_times() -> None:
    traffic = draw_decode_traffic(0.8, 400, ONE, COST, seed=3)
    service_ms = traffic.alone_ms(COST)
    waits, wait = [], 0.0
    gaps = np.diff(traffic.arrival_ms, append=np.inf)
    for served, gap in zip(service_ms, gaps, strict=True):
        waits.append(wait)
        wait = max(0.0, wait + served - gap)
    latency_ms = (np.array(waits) + service_ms)[int(WARM_UP * 400) :]
    outcome = simulate_decode(STOCK, Regime("one slot", ONE, ONE), traffic, COST)
    outputs, alone = traffic.output_tokens[40:], service_ms[40:]
    assert outcome.mean_slowdown == pytest.approx((latency_ms / alone).mean())
    assert outcome.normalised_ms == pytest.approx((latency_ms / outputs).mean())
    assert outcome.normalised_p99_ms == pytest.approx(np.percentile(latency_ms / outputs, 99))


def test_where_nothing_is_scarce_the_policy_makes_no_difference() -> None:
    free = REGIMES[2]
    outcomes = {str(_at(0.7, free, each)).partition("regime")[2] for each in VARIANTS}
    assert len(outcomes) == 1


def test_keeping_k_v_recomputes_nothing_where_only_slots_are_scarce() -> None:
    slots = REGIMES[0]
    stock, kept, freed = (_at(1.3, slots, each) for each in VARIANTS)
    assert stock.recomputed == kept.recomputed == 0 < freed.recomputed
    assert kept.normalised_ms < stock.normalised_ms
    assert kept.stall_p99_ms > stock.stall_p99_ms
    assert freed.tokens_per_s < kept.tokens_per_s
