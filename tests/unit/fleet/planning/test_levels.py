from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.fleet.planning.levels import levels_of, most_useful

_REPLICAS = st.lists(st.tuples(st.floats(0, 5), st.floats(0.3, 3)), min_size=1, max_size=6)


@given(replicas=_REPLICAS, work=st.floats(0.1, 20))
def test_until_the_level_the_work_is_just_done(
    replicas: list[tuple[float, float]], work: float
) -> None:
    starts, rates = np.array(replicas).T
    for count, level in enumerate(levels_of(starts, rates, work), 1):
        done = (level - starts[:count]) * rates[:count]
        assert done.sum() == pytest.approx(work)


@given(replicas=_REPLICAS, work=st.floats(0.1, 20))
def test_who_is_of_use_begins_before_the_level_and_comes_in_the_order_of_its_work(
    replicas: list[tuple[float, float]], work: float
) -> None:
    starts, rates = np.array(replicas).T
    used = most_useful(starts, rates, work)
    level = levels_of(starts[used], rates[used], work)[-1]
    assert len(set(used)) == len(used) >= 1
    assert (starts[used] <= level).all()
    assert (np.diff((level - starts[used]) * rates[used]) <= 1e-9).all()
    others = np.setdiff1d(np.arange(len(starts)), used)
    assert (starts[others] >= level * (1 - 1e-9)).all(), "others would not lower the level"


@given(starts=st.lists(st.floats(0, 5), min_size=1, max_size=6), work=st.floats(0.1, 20))
def test_of_equally_fast_ones_the_first_have_the_lowest_level(
    starts: list[float], work: float
) -> None:
    begin, rates = np.array(starts), np.ones(len(starts))
    used = most_useful(begin, rates, work)
    levels = levels_of(begin[used], rates[used], work)
    for count, level in enumerate(levels, 1):
        lowest = min((work + sum(some)) / count for some in combinations(starts, count))
        assert level == pytest.approx(lowest)
