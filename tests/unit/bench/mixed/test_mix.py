from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.mixed.mix import Mix, draw_mix, slowdowns
from bench.workloads import ScoreRequest
from sglang_prefill_ext.errors import ConfigError

lengths = st.lists(st.integers(1, 60), min_size=1, max_size=4, unique=True).map(sorted)


@given(lengths, st.integers(0, 20), st.integers(0, 20), st.integers(0, 2**31))
def test_a_shorter_mix_is_the_beginning_of_a_longer_one(
    lengths: list[int], count: int, more: int, seed: int
) -> None:
    short, long = (draw_mix(lengths, 8000, n, seed) for n in (count, count + more))
    assert long.requests[:count] == short.requests
    assert long.length_class[:count].tolist() == short.length_class.tolist()
    assert len(long.requests) == count + more


@given(lengths, st.integers(0, 40), st.integers(0, 2**31))
def test_each_request_is_one_prompt_of_its_length(
    lengths: list[int], count: int, seed: int
) -> None:
    mix = draw_mix(lengths, 8000, count, seed)
    for number, request in zip(mix.length_class, mix.requests, strict=True):
        assert len(request.query) == lengths[number]
        assert request.items == [[]]


def test_lengths_are_equally_frequent_and_prompts_all_different() -> None:
    mix = draw_mix([32, 64], 8000, 2000, seed=3)
    assert np.bincount(mix.length_class) == pytest.approx(1000, rel=0.1)
    assert len({tuple(request.query) for request in mix.requests}) == 2000
    assert draw_mix([32, 64], 8000, 1, seed=4).requests != mix.requests[:1]


@pytest.mark.parametrize("lengths", [[], [0, 1], [64, 32], [32, 32]])
def test_wrong_lengths_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ConfigError, match="ascending"):
        draw_mix(lengths, 8000, 4, seed=0)


def _mix(classes: list[int]) -> Mix:
    return Mix((10, 100), np.array(classes), [ScoreRequest([1], [[]])] * len(classes))


def test_slowdown_is_over_the_same_length_alone() -> None:
    # The first of ten is warm-up.
    mix = _mix([0, 0, 1, 0, 1, 0, 1, 0, 1, 0])
    latency_ms = [1e6, 4.0, 40.0, 4.0, 40.0, 4.0, 40.0, 4.0, 80.0, 4.0]
    seen = slowdowns(mix, latency_ms, {10: 2.0, 100: 20.0})
    assert seen.length_slowdown == {10: 2.0, 100: pytest.approx(10 / 4)}
    assert seen.mean_slowdown == pytest.approx((5 * 2 + 10) / 9)
    assert seen.longest_p99_ms == pytest.approx(np.percentile([40, 40, 40, 80], 99))


@given(st.lists(st.integers(0, 1), min_size=2, max_size=30), st.floats(1.0, 50.0))
def test_an_equal_slowdown_is_everybodys(classes: list[int], factor: float) -> None:
    mix = _mix([0, *classes, 0, 1])
    idle_ms = {10: 3.0, 100: 30.0}
    latency_ms = [factor * idle_ms[(10, 100)[number]] for number in mix.length_class]
    seen = slowdowns(mix, latency_ms, idle_ms)
    assert seen.mean_slowdown == pytest.approx(factor)
    assert list(seen.length_slowdown.values()) == pytest.approx([factor, factor])


def test_a_length_that_only_warms_up_is_an_error() -> None:
    with pytest.raises(ConfigError, match="more --seconds"):
        slowdowns(_mix([1, 0, 0]), [1.0, 1.0, 1.0], {10: 1.0, 100: 1.0})
