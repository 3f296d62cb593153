from __future__ import annotations

import numpy as np
import pytest

from bench.simulation.decode_batch import Limits
from bench.simulation.decode_traffic import OUTPUT, PROMPT, DecodeCost, draw_decode_traffic

COST = DecodeCost()
ONE = Limits(1, 1 << 20)


def test_a_load_of_one_is_what_one_slot_just_serves() -> None:
    traffic = draw_decode_traffic(1.0, 20_000, ONE, COST, seed=0)
    assert traffic.alone_ms(COST).sum() == pytest.approx(traffic.arrival_ms[-1], rel=0.03)


def test_alone_a_request_takes_the_sum_of_its_iterations() -> None:
    traffic = draw_decode_traffic(1.0, 50, ONE, COST, seed=0)
    for number, alone_ms in enumerate(traffic.alone_ms(COST)):
        prompt, output = int(traffic.prompt_tokens[number]), int(traffic.output_tokens[number])
        iterations_ms = [
            COST.iteration_ms(1, prompt + done, 0 if done > 1 else prompt)
            for done in range(1, output + 1)
        ]
        assert alone_ms == pytest.approx(sum(iterations_ms))


def test_lengths_are_lognormal_and_bounded_and_do_not_hang_on_the_load() -> None:
    low, high = (draw_decode_traffic(load, 20_000, ONE, COST, seed=0) for load in (0.5, 1.0))
    for lengths, (median, _, most) in ((low.prompt_tokens, PROMPT), (low.output_tokens, OUTPUT)):
        assert np.median(lengths) == pytest.approx(median, rel=0.05)
        assert lengths.min() >= 1
        assert lengths.max() <= most
    assert (low.output_tokens == high.output_tokens).all()
    assert low.arrival_ms == pytest.approx(2 * high.arrival_ms)


def test_a_small_pool_and_few_slots_serve_less() -> None:
    def last_arrival(limits: Limits) -> float:
        return float(draw_decode_traffic(1.0, 2_000, limits, COST, seed=0).arrival_ms[-1])

    plenty = last_arrival(Limits(256, 1 << 20))
    assert plenty < last_arrival(Limits(16, 1 << 20)) < last_arrival(ONE)
    assert plenty < last_arrival(Limits(256, 1 << 14))
