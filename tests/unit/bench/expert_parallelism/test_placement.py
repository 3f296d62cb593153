from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.expert_parallelism.placement import in_order, rebalanced

GPUS = st.sampled_from([2, 4, 8])
LOADS = st.lists(st.integers(0, 1000), min_size=16, max_size=16).map(np.array)


@given(LOADS, GPUS, st.sampled_from([0, 8, 16]))
def test_rebalancing_is_never_worse_on_the_load_it_was_made_from(
    load: np.ndarray, gpus: int, copies: int
) -> None:
    shares = rebalanced(load, gpus, copies)
    assert shares.sum(axis=0) == pytest.approx(np.ones(16))
    assert ((shares > 0).sum(axis=1) <= (16 + copies) // gpus).all()
    rows = shares @ load
    assert rows.sum() == pytest.approx(load.sum())
    assert rows.max() <= (in_order(16, gpus) @ load).max()


@given(GPUS)
def test_experts_in_order_are_whole_and_equally_many(gpus: int) -> None:
    shares = in_order(16, gpus)
    assert shares.sum(axis=1).tolist() == [16 / gpus] * gpus
    assert (shares.argmax(axis=0) == np.arange(16) // (16 // gpus)).all()


def test_copies_share_the_rows_of_the_busiest_expert() -> None:
    load = np.array([300, 100, 100, 100, 100, 100])
    shares = rebalanced(load, 2, 2)
    assert shares[:, 0].tolist() in ([1 / 3, 2 / 3], [2 / 3, 1 / 3])
    assert (shares @ load).tolist() == pytest.approx([400, 400])
    assert (in_order(6, 2) @ load).tolist() == [500, 300]


def test_without_copies_experts_are_only_placed() -> None:
    load = np.array([9, 8, 1, 2])
    assert rebalanced(load, 2, 0).tolist() == [[1, 0, 1, 0], [0, 1, 0, 1]]
