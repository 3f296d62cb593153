from __future__ import annotations

from itertools import product
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.fleet.planning import assignment
from sglang_prefill_ext.fleet.planning.assignment import Floats, assign, ends_of

_WEIGHT = st.floats(0.1, 10)


def _level(weights: Floats, starts: Floats, slowness: Floats) -> float:
    return float((weights.sum() + (starts / slowness).sum()) / (1 / slowness).sum())


@given(
    weights=st.lists(_WEIGHT, min_size=1, max_size=60),
    parts=st.lists(st.tuples(st.floats(0, 5), st.floats(0.3, 3)), min_size=1, max_size=6),
)
def test_no_part_ends_later_than_the_level_by_more_than_a_row(
    weights: list[float], parts: list[tuple[float, float]]
) -> None:
    work, starts, slowness = np.array(weights), *np.array(parts).T
    level = _level(work, starts, slowness)
    used = starts <= level  # as the planner chooses them
    starts, slowness = starts[used], slowness[used]
    level = _level(work, starts, slowness)
    used = starts <= level
    starts, slowness = starts[used], slowness[used]
    places = assign(work, starts, slowness)
    assert places.shape == work.shape
    assert (places >= 0).all()
    assert (places < len(starts)).all()
    ends = ends_of(places, work, starts, slowness)
    bound = _level(work, starts, slowness) + work.max() * slowness.max()
    assert ends.max() <= bound * (1 + 1e-9)


@given(
    weights=st.lists(_WEIGHT, min_size=1, max_size=7),
    starts=st.lists(st.floats(0, 5), min_size=1, max_size=3),
)
def test_equal_parts_end_less_than_a_row_behind_the_optimum(
    weights: list[float], starts: list[float]
) -> None:
    work, begin = np.array(weights), np.array(starts)
    same = np.ones(len(begin))
    end = ends_of(assign(work, begin, same), work, begin, same).max()
    best = min(
        ends_of(np.array(places), work, begin, same).max()
        for places in product(range(len(begin)), repeat=len(work))
    )
    if begin.max() <= best:  # otherwise a part should be empty, which the planner decides
        assert best * (1 - 1e-9) <= end <= best + work.max() * (1 - 1 / len(begin)) + 1e-9


def test_it_is_the_optimum_nearly_always() -> None:
    rng = np.random.default_rng(0)
    behind = []
    for _ in range(60):
        work, starts, slowness = rng.lognormal(0, 0.6, 7), rng.random(3), rng.uniform(0.5, 2, 3)
        end = ends_of(assign(work, starts, slowness), work, starts, slowness).max()
        best = min(
            ends_of(np.array(places), work, starts, slowness).max()
            for places in product(range(3), repeat=7)
        )
        behind.append(end / best - 1)
    assert np.mean(behind) < 0.02
    assert max(behind) < 0.15


@pytest.mark.parametrize("rows", [3, 10, 180])
def test_equal_rows_stay_side_by_side(rows: int) -> None:
    places = assign(np.full(rows, 2.0), np.array([0.0, 0.5, 1.0]), np.ones(3))
    assert (np.diff(places) >= 0).all()
    counts = np.bincount(places, minlength=3)
    assert counts.max() - counts.min() <= 1


def test_parts_of_any_speed_and_start_end_together() -> None:
    work = np.random.default_rng(1).lognormal(0, 0.6, 400)
    parts = np.array([0.0, 50.0, 100.0]), np.array([1.0, 2.0, 1.0])
    ends = ends_of(assign(work, *parts), work, *parts)
    np.testing.assert_allclose(ends, _level(work, *parts), rtol=0.01)


def test_an_exchange_repairs_what_longest_first_gets_wrong() -> None:
    # 3+3 and 2+2+2; longest first gives 3+2+2 and 3+2.
    work = np.array([3.0, 3.0, 2.0, 2.0, 2.0])
    with patch.object(assignment, "_MOST_EXCHANGES", 1):
        places = assign(work, np.zeros(2), np.ones(2))
    assert np.bincount(places, work).tolist() == [6.0, 6.0]
