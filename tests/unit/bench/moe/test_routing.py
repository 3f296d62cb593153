from __future__ import annotations

import numpy as np
import pytest

from bench.moe.routing import LAYERS, drawn, recorded


@pytest.mark.parametrize("kind", ["uniform", "zipf"])
def test_each_token_takes_as_many_different_experts_as_asked(kind: str) -> None:
    (first, second) = drawn(kind, 16, 4, 100, 2, seed=0)
    for forward in (first, second):
        assert forward.counts.shape == (LAYERS, 16)
        assert forward.counts.sum(axis=-1).tolist() == [400] * LAYERS
        assert forward.counts.max() <= 100
    assert not np.array_equal(first.counts, second.counts)


def test_draws_are_skewed_where_asked_and_the_same_again() -> None:
    (even,) = drawn("uniform", 64, 2, 4000, 1, seed=0)
    (skewed,) = drawn("zipf", 64, 2, 4000, 1, seed=0)
    assert skewed.counts.max() > 4 * even.counts.max()
    (again,) = drawn("zipf", 64, 2, 4000, 1, seed=0)
    assert np.array_equal(skewed.counts, again.counts)


@pytest.mark.parametrize(("experts", "top_k"), [(128, 8), (32, 4), (8, 2)])
def test_what_was_recorded_is_whole(experts: int, top_k: int) -> None:
    forwards = recorded(experts, top_k)
    assert len(forwards) == 10
    for forward in forwards:
        assert forward.counts.shape == (3, experts)
        assert forward.counts.sum(axis=-1).tolist() == [forward.tokens * top_k] * 3
    assert recorded(experts + 1, top_k) == []
