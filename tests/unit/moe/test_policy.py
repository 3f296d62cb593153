from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.config import MoePolicy
from sglang_prefill_ext.moe import policy as rule
from sglang_prefill_ext.moe.blocks import Entry, padded_rows
from sglang_prefill_ext.moe.policy import BlockTime, Pair, alignment_for, choose, choose_pairs
from sglang_prefill_ext.moe.routing import RoutingAverage

LARGE, MIDDLE, SMALL = Entry(2048, 128), Entry(512, 64), Entry(128, 16)
CANDIDATES = (LARGE, MIDDLE, SMALL)
COUNTS = st.lists(st.integers(0, 600), min_size=1, max_size=30)
TIMES = st.builds(BlockTime, st.floats(0, 1e-4), st.floats(1e-9, 1e-6))


def seconds_by_hand(rows: list[int], entry: Entry, times: dict[Entry, BlockTime]) -> float:
    fixed_s, row_s = times[entry]
    return fixed_s + row_s * entry.block * sum(math.ceil(count / entry.block) for count in rows)


@given(COUNTS, st.fixed_dictionaries(dict.fromkeys(CANDIDATES, TIMES)))
def test_the_least_time_is_never_above_that_of_any_block_or_of_another_policy(
    rows: list[int], times: dict[Entry, BlockTime]
) -> None:
    counts = np.array([rows])
    (chosen,) = choose(MoePolicy.LEAST_TIME, counts, CANDIDATES, times)
    by_hand = {entry: seconds_by_hand(rows, entry, times) for entry in CANDIDATES}
    assert by_hand[chosen] <= min(by_hand.values()) * (1 + 1e-12)
    (by_ratio,) = choose(MoePolicy.PADDING_RATIO, counts, CANDIDATES, times)
    assert by_hand[chosen] <= by_hand[by_ratio] * (1 + 1e-12)
    assert times[chosen].seconds(counts, chosen.block)[0] == pytest.approx(by_hand[chosen])


@given(st.lists(COUNTS.map(lambda rows: (rows * 30)[:7]), min_size=1, max_size=5))
def test_layers_are_chosen_for_one_by_one(layers: list[list[int]]) -> None:
    times = {LARGE: BlockTime(0, 1.0), MIDDLE: BlockTime(0, 1.1), SMALL: BlockTime(0, 2.0)}
    for policy in MoePolicy:
        together = choose(policy, np.array(layers), CANDIDATES, times)
        alone = [choose(policy, np.array([rows]), CANDIDATES, times)[0] for rows in layers]
        assert together == alone


@pytest.mark.parametrize(
    ("rows", "chosen"),
    [([85] * 8, MIDDLE), ([86] * 8, LARGE), ([128] * 8, LARGE), ([0, 3], MIDDLE)],
    ids=["just above 1.5", "just below", "full", "hardly any"],
)
def test_the_published_rule(rows: list[int], chosen: Entry) -> None:
    assert choose(MoePolicy.PADDING_RATIO, np.array([rows]), CANDIDATES, {}) == [chosen]


def test_the_published_rule_is_for_128_and_64_only() -> None:
    rows = np.array([[1, 1, 1]])
    for candidates in [(MIDDLE, LARGE, SMALL), (LARGE, SMALL), (Entry(1, 256), MIDDLE)]:
        assert choose(MoePolicy.PADDING_RATIO, rows, candidates, {}) == [candidates[0]]


def test_without_rows_sglangs_choice_stays() -> None:
    times = dict.fromkeys(CANDIDATES, BlockTime(0, 1.0))
    for policy in MoePolicy:
        assert choose(policy, np.zeros((1, 4)), CANDIDATES, times) == [LARGE]


def test_auto_goes_by_time_where_times_are_known() -> None:
    full = np.array([[128, 128]])
    times = {LARGE: BlockTime(0, 2.0), MIDDLE: BlockTime(0, 1.0)}
    assert choose(MoePolicy.AUTO, full, CANDIDATES, times) == [MIDDLE]
    assert choose(MoePolicy.AUTO, full, CANDIDATES, {}) == [LARGE]
    assert choose(MoePolicy.AUTO, np.array([[1, 1]]), CANDIDATES, {}) == [MIDDLE]


def test_what_was_not_measured_is_never_chosen_by_time() -> None:
    rows = np.array([[1, 1]] * 2)
    known = {LARGE: BlockTime(0, 1.0), SMALL: BlockTime(0, 1.0)}
    assert choose(MoePolicy.LEAST_TIME, rows, CANDIDATES, known) == [SMALL] * 2
    known[MIDDLE] = known.pop(LARGE)
    assert choose(MoePolicy.LEAST_TIME, rows, CANDIDATES, known) == [LARGE] * 2


def test_a_block_that_failed_when_it_was_timed_is_no_choice_of_the_rule() -> None:
    hardly_any = np.array([[1, 1]] * 2)
    times = {LARGE: BlockTime(0, 1.0), SMALL: BlockTime(0, 1.0)}
    for chosen in (choose, choose_pairs):
        found = chosen(MoePolicy.PADDING_RATIO, hardly_any, CANDIDATES, times)
        assert found == [LARGE] * 2


@given(COUNTS, COUNTS, st.fixed_dictionaries(dict.fromkeys(CANDIDATES, TIMES)))
def test_a_pair_has_the_two_least_times_that_were_expected_and_takes_the_lesser_that_is(
    expected: list[int], rows: list[int], times: dict[Entry, BlockTime]
) -> None:
    (pair,) = choose_pairs(MoePolicy.LEAST_TIME, np.array([expected]), CANDIDATES, times)
    assert isinstance(pair, Pair)
    before = {entry: seconds_by_hand(expected, entry, times) for entry in CANDIDATES}
    (left_out,) = set(CANDIDATES) - {pair.first, pair.second}
    least = [before[pair.first], before[pair.second], before[left_out]]
    assert least == pytest.approx(sorted(least), rel=1e-12)
    now = {entry: seconds_by_hand(rows, entry, times) for entry in (pair.first, pair.second)}
    assert now[pair.taken(np.array(rows))] <= min(now.values()) * (1 + 1e-12)


@given(COUNTS)
def test_a_pair_of_the_published_rule_takes_what_the_rule_says(rows: list[int]) -> None:
    counts = np.array([rows])
    (pair,) = choose_pairs(MoePolicy.PADDING_RATIO, counts, CANDIDATES, {})
    assert isinstance(pair, Pair)
    assert [pair.taken(counts[0])] == choose(MoePolicy.PADDING_RATIO, counts, CANDIDATES, {})


@pytest.mark.parametrize("policy", [MoePolicy.LEAST_TIME, MoePolicy.PADDING_RATIO])
def test_what_cannot_be_launched_beside_another_is_in_no_pair(policy: MoePolicy) -> None:
    rows = np.array([[128, 128], [1, 1]])
    times = {LARGE: BlockTime(0, 1.0), MIDDLE: BlockTime(0, 1.1)}
    for alone in (LARGE, MIDDLE):
        chosen = choose_pairs(policy, rows, CANDIDATES, times, {alone})
        assert chosen == choose(policy, rows, CANDIDATES, times) == [LARGE, MIDDLE]
    assert all(isinstance(each, Pair) for each in choose_pairs(policy, rows, CANDIDATES, times))


def test_there_is_no_pair_of_one() -> None:
    rows = np.array([[1, 1]])
    for times in ({LARGE: BlockTime(0, 1.0)}, {MIDDLE: BlockTime(0, 1.0)}):
        assert choose_pairs(MoePolicy.LEAST_TIME, rows, CANDIDATES, times) == [LARGE]
    assert choose_pairs(MoePolicy.PADDING_RATIO, rows, (MIDDLE, LARGE), {}) == [MIDDLE]


# DeepGEMM's alignment, a multiple to which the rows of an expert are padded

CHOOSING = [policy for policy in MoePolicy if policy is not MoePolicy.STOCK]
ROWS = [1, 64, 127, 128, 1000, 4096, 18_432, 32_768, 131_072]


@pytest.mark.parametrize("policy", CHOOSING)
@pytest.mark.parametrize("experts", [1, 8, 128])
def test_64_rows_where_128_would_pad_too_much(policy: MoePolicy, experts: int) -> None:
    chosen = [alignment_for(policy, rows, experts) for rows in ROWS]
    expected = [RoutingAverage(1, experts).rows(rows) for rows in ROWS]
    ratios = [
        padded_rows(each, rule.LARGE)[0] / rows for each, rows in zip(expected, ROWS, strict=True)
    ]
    assert chosen == [rule.SMALL if ratio > rule.RATIO else rule.LARGE for ratio in ratios]
    assert chosen[0] == rule.SMALL
    assert chosen[-1] == rule.LARGE


def test_the_stock_policy_keeps_128() -> None:
    assert {alignment_for(MoePolicy.STOCK, rows, 128) for rows in ROWS} == {rule.LARGE}
