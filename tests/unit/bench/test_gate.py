from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.gate import Agreement, GateError, compare

TOLERANCE = 1e-5
probabilities = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6)


def body(first: Sequence[float], logprobs: Sequence[float] | None = None) -> bytes:
    answer: dict[str, object] = {"scores": [[p, 1 - p] for p in first], "token_logprobs": None}
    if logprobs is not None:
        answer["token_logprobs"] = [[value, value - 1] for value in logprobs]
    return json.dumps(answer).encode()


@given(st.lists(probabilities, min_size=1, max_size=4))
def test_equal_answers_agree_exactly(answers: list[list[float]]) -> None:
    bodies = {number: body(first, first) for number, first in enumerate(answers)}
    expected = Agreement(sum(map(len, answers)), 0.0, 0.0, 0, TOLERANCE)
    assert compare(bodies, bodies, TOLERANCE) == expected
    assert expected.holds


@given(probabilities, st.floats(0.0, 1e-4))
def test_a_shift_is_measured_and_judged(first: list[float], shift: float) -> None:
    shifted = [p + shift for p in first]
    seen = compare({0: body(first)}, {0: body(shifted)}, TOLERANCE)
    assert seen.largest_probability == pytest.approx(shift, abs=1e-12)
    assert seen.holds == (seen.largest_probability <= TOLERANCE)
    assert seen.rank_changes == 0


def test_logprobs_are_held_to_the_tolerance_too() -> None:
    seen = compare({0: body([0.5], [-1.0])}, {0: body([0.5], [-1.001])}, TOLERANCE)
    assert seen.largest_probability == 0.0
    assert seen.largest_logprob == pytest.approx(1e-3)
    assert not seen.holds


def test_rank_changes_are_pairs_that_stock_separates() -> None:
    stock, extension = [0.5, 0.3, 0.1], [0.1, 0.3, 0.5]
    assert compare({0: body(stock)}, {0: body(extension)}, TOLERANCE).rank_changes == 3
    near, swapped = [0.5, 0.5 + 1e-7], [0.5 + 1e-7, 0.5]
    assert compare({0: body(near)}, {0: body(swapped)}, TOLERANCE).rank_changes == 0


def test_rank_changes_within_a_wide_tolerance_still_fail() -> None:
    seen = compare({0: body([0.50, 0.47])}, {0: body([0.485, 0.486])}, tolerance=2e-2)
    assert seen.largest_probability < 2e-2
    assert seen.rank_changes == 1
    with pytest.raises(GateError, match=r"tiny, 60\+2x50: .* 1 rank changes"):
        seen.require("tiny, 60+2x50")


@pytest.mark.parametrize("position", [0, 1])
def test_a_nan_is_red_wherever_it_is(position: int) -> None:
    first = [0.5, 0.5]
    first[position] = math.nan
    answers = {0: body([0.5, 0.5]), 1: body(first), 2: body([0.5, 0.5])}
    seen = compare({number: body([0.5, 0.5]) for number in range(3)}, answers, TOLERANCE)
    assert not seen.holds


def test_a_nan_stays_red_when_merged() -> None:
    good = compare({0: body([0.5])}, {0: body([0.5])}, TOLERANCE)
    bad = compare({0: body([0.5])}, {0: body([math.nan])}, TOLERANCE)
    assert not good.merged_with(bad).holds
    assert not bad.merged_with(good).holds


def test_only_requests_that_both_answered_are_compared() -> None:
    stock = {0: body([0.1]), 1: body([0.2, 0.3])}
    extension = {1: body([0.2, 0.3]), 2: body([0.9])}
    assert compare(stock, extension, TOLERANCE).rows == 2


def test_nothing_compared_is_red() -> None:
    with pytest.raises(GateError, match="0 rows"):
        compare({0: body([0.1])}, {1: body([0.1])}, TOLERANCE).require("micro")


def test_answers_of_another_form_are_errors() -> None:
    with pytest.raises(GateError, match=r"shape \(1, 2\), extension \(2, 2\)"):
        compare({0: body([0.1])}, {0: body([0.1, 0.2])}, TOLERANCE)
    with pytest.raises(GateError, match="only one of the two"):
        compare({0: body([0.1], [-1.0])}, {0: body([0.1])}, TOLERANCE)


def test_merging_adds_rows_and_keeps_the_largest() -> None:
    one = Agreement(3, 1e-6, 4e-6, 0, TOLERANCE)
    other = Agreement(5, 2e-6, 3e-6, 1, TOLERANCE)
    assert one.merged_with(other) == Agreement(8, 2e-6, 4e-6, 1, TOLERANCE)


def test_large_logprobs_are_compared_relative_to_their_size() -> None:
    stock, near, far = ({0: body([0.5], [value])} for value in (-20.0, -20.000_019, -20.000_021))
    assert compare(stock, near, TOLERANCE).holds
    assert not compare(stock, far, TOLERANCE).holds
    stock, far = ({0: body([0.5], [value])} for value in (-9.0, -9.000_011))
    assert not compare(stock, far, TOLERANCE).holds


def test_in_half_precision_a_logprob_may_be_off_by_the_step_of_its_logit() -> None:
    stock, near, far = ({0: body([0.5], [value])} for value in (-20.0, -20.15, -20.17))
    assert compare(stock, near, 2e-2).holds
    assert not compare(stock, far, 2e-2).holds
    stock, far = ({0: body([0.5], [value])} for value in (-1.5, -1.521))
    assert not compare(stock, far, 2e-2).holds
