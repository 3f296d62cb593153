from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.simulation.decode_policies import DecodePolicy, Generation, MultiLevel, Stock


def _numbers(policy: DecodePolicy) -> list[int]:
    return [each.number for each in policy.order()]


def _added(policy: DecodePolicy, count: int) -> list[Generation]:
    sequences = [Generation(number, prompt_tokens=1) for number in range(count)]
    for each in sequences:
        policy.add(each)
    return sequences


def test_stock_serves_in_order_of_arrival_and_queues_the_retracted_anew() -> None:
    stock = Stock()
    first, second, third, _ = _added(stock, 4)
    stock.served([first, second])
    assert _numbers(stock) == [0, 1, 2, 3]
    stock.retracted(second)
    assert _numbers(stock) == [0, 2, 3, 1]
    stock.served([first, third])
    stock.remove(first)
    assert _numbers(stock) == [2, 3, 1]


def test_who_has_used_up_a_quantum_goes_behind_the_others() -> None:
    levels = MultiLevel(quanta=(2, 3))
    first, second = _added(levels, 2)
    levels.served([first])
    assert _numbers(levels) == [0, 1]
    levels.served([first])
    assert _numbers(levels) == [1, 0]
    for _ in range(2):
        levels.served([second])
    assert _numbers(levels) == [0, 1]  # both in the last level
    for _ in range(3):
        levels.served([first])
    assert _numbers(levels) == [1, 0]  # which goes round


def test_who_comes_is_served_before_those_that_have_generated_more() -> None:
    levels = MultiLevel(quanta=(1, 5))
    old, _ = _added(levels, 2)
    levels.served([old])
    levels.add(Generation(7, prompt_tokens=1))
    assert _numbers(levels) == [1, 7, 0]


def test_the_preempted_and_the_retracted_keep_their_place() -> None:
    levels = MultiLevel(quanta=(1, 5))
    first, second = _added(levels, 2)
    levels.served([first, second])
    levels.served([first])
    levels.retracted(second)
    assert _numbers(levels) == [0, 1]


def test_the_starved_are_promoted_to_the_end_of_the_first_level() -> None:
    levels = MultiLevel(quanta=(1, 100), starved_iterations=3)
    old, other = _added(levels, 2)
    levels.served([old, other])
    busy = Generation(7, prompt_tokens=1)
    for iteration in range(3):
        assert _numbers(levels)[0] == 0, iteration
        levels.served([other])
    levels.add(busy)
    assert _numbers(levels) == [0, 7, 1]


def test_being_served_ends_starvation() -> None:
    levels = MultiLevel(quanta=(1, 100), starved_iterations=3)
    first, second = _added(levels, 2)
    levels.served([first, second])
    for _ in range(5):
        levels.served([first])
        levels.served([second])
    late = Generation(7, prompt_tokens=1)
    levels.add(late)
    assert _numbers(levels) == [7, 0, 1]


@pytest.mark.parametrize("policy", [Stock, MultiLevel])
def test_who_is_done_is_gone(policy: type[Stock | MultiLevel]) -> None:
    instance = policy()
    first, second = _added(instance, 2)
    instance.served([first, second])
    instance.remove(first)
    instance.served([second])
    assert _numbers(instance) == [1]


@given(
    slots=st.integers(1, 3),
    starved=st.integers(1, 8),
    quanta=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    outputs=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 25)), min_size=1, max_size=14),
)
def test_none_is_passed_over_for_longer_than_stated(
    slots: int, starved: int, quanta: list[int], outputs: list[tuple[int, int]]
) -> None:
    levels = MultiLevel(quanta, starved)
    limit = starved + quanta[0] * (len(outputs) - 1) / slots
    arrivals = list(accumulate(gap for gap, _ in outputs))
    waited: dict[Generation, int] = {}
    iteration = 0
    while iteration <= arrivals[-1] or waited:
        for number in [n for n, arrival in enumerate(arrivals) if arrival == iteration]:
            new = Generation(number, prompt_tokens=1)
            waited[new] = 0
            levels.add(new)
        assert set(levels.order()) == set(waited)
        batch = levels.order()[:slots]
        waited = {each: 0 if each in batch else ago + 1 for each, ago in waited.items()}
        assert max(waited.values(), default=0) <= limit
        levels.served(batch)
        for each in batch:
            each.generated += 1
            if each.generated == outputs[each.number][1]:
                levels.remove(each)
                del waited[each]
        iteration += 1
