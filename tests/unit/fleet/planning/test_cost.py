from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.fleet.planning.cost import UNMEASURED_TOKENS_PER_S, RowCosts, Speed

SPEED = Speed(launch_s=0.5, token_s=0.01, pair_s=0.001, max_forward_tokens=100)


def _status(**changed: object) -> dict[str, object]:
    return {
        "launch_tokens": 100,
        "busy_s": 3.0,
        "calibrated_tokens_per_s": 400.0,
        "counters": {"forwards": 5, "tokens_computed": 2500},
        "forward_budget": {"max_tokens": 8192},
    } | changed


@given(prefix=st.integers(0, 9), lens=st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_pairs_are_what_a_causal_mask_lets_through(prefix: int, lens: list[int]) -> None:
    costs = RowCosts.of(prefix, lens)
    for length, pairs in zip(lens, costs.pairs.tolist(), strict=True):
        whole = np.tril(np.ones((prefix + length, prefix + length), dtype=int))
        assert pairs == whole[prefix:].sum()
        assert costs.prefix_pairs == whole[:prefix].sum()


def test_the_prefix_is_charged_once_a_part_unless_it_is_cached() -> None:
    costs = RowCosts.of(4, [2, 3, 5])
    rows = np.array([0, 2])
    fresh = costs.part_s(SPEED, rows)
    assert fresh == pytest.approx(0.5 + 11 * 0.01 + (10 + 8 + 3 + 20 + 15) * 0.001)
    cached = costs.part_s(SPEED, rows, prefix_cached=True)
    prefix_s = 4 * 0.01 + 10 * 0.001
    assert cached == pytest.approx(fresh - prefix_s)
    rows_s = costs.tokens.sum() * 0.01 + costs.pairs.sum() * 0.001
    assert costs.part_s(SPEED) == pytest.approx(0.5 + prefix_s + rows_s)


@pytest.mark.parametrize(("tokens", "launches"), [(100, 1), (101, 2), (250, 3)])
def test_what_is_over_the_budget_is_launched_several_times(tokens: int, launches: int) -> None:
    assert SPEED.seconds(tokens, 0) == pytest.approx(launches * 0.5 + tokens * 0.01)


def test_a_slower_replica_takes_longer_for_everything() -> None:
    costs = RowCosts.of(7, [30, 40, 50])
    assert costs.part_s(SPEED.slowed(1.7)) == pytest.approx(1.7 * costs.part_s(SPEED))


def test_speed_is_read_off_the_status_page() -> None:
    speed = Speed.of_status(_status(), pair_tokens=0.5)
    assert speed == Speed(0.1, 0.001, 0.0005, 8192)
    assert 5 * speed.launch_s + 2500 * speed.token_s == pytest.approx(3.0)


@pytest.mark.parametrize(("calibrated", "speed"), [(400.0, 400.0), (0.0, UNMEASURED_TOKENS_PER_S)])
def test_what_has_computed_nothing_is_as_fast_as_at_its_start(
    calibrated: float, speed: float
) -> None:
    idle = {"forwards": 0, "tokens_computed": 0}
    told = _status(busy_s=0.0, counters=idle, calibrated_tokens_per_s=calibrated)
    found = Speed.of_status(told, pair_tokens=0.5)
    assert found == Speed(100 / speed, 1 / speed, 0.5 / speed, 8192)
