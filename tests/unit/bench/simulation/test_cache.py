from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bench.simulation.cache import SimulatedCache, SimulatedTransaction
from sglang_prefill_ext.wire.arrays import Int32Array


def _prefix(number: int, length: int = 10) -> Int32Array:
    return np.full(length, number, dtype=np.int32)


def _begin(cache: SimulatedCache, prefix: Int32Array) -> SimulatedTransaction:
    transaction = cache.begin(prefix, keep=False)
    transaction.reserve(whole=False)
    return transaction


def _use(cache: SimulatedCache, prefix: Int32Array) -> int:
    transaction = _begin(cache, prefix)
    transaction.commit()
    return transaction.cached


def test_a_prefix_is_cached_once_its_forward_has_succeeded() -> None:
    cache = SimulatedCache(30)
    failed = _begin(cache, _prefix(1))
    assert (failed.cached, failed.stored) == (0, 10)
    assert cache.cached_tokens(_prefix(1)) == 0
    failed.rollback()
    assert cache.cached_tokens(_prefix(1)) == 0
    assert _use(cache, _prefix(1)) == 0
    assert cache.cached_tokens(_prefix(1)) == 10
    assert _use(cache, _prefix(1)) == 10


def test_a_failed_forward_leaves_what_was_cached_before() -> None:
    cache = SimulatedCache(30)
    _use(cache, _prefix(1))
    _begin(cache, _prefix(1)).rollback()
    assert cache.cached_tokens(_prefix(1)) == 10


def test_the_longest_unused_gives_way() -> None:
    cache = SimulatedCache(20)
    for number in (1, 2, 1, 3):
        _use(cache, _prefix(number))
    assert [cache.cached_tokens(_prefix(number)) for number in (1, 2, 3)] == [10, 0, 10]


def test_what_is_held_does_not_give_way() -> None:
    cache = SimulatedCache(20)
    _use(cache, _prefix(1))
    held = _begin(cache, _prefix(1))
    assert _begin(cache, _prefix(2, length=11)).stored == 0
    held.commit()
    assert cache.cached_tokens(_prefix(1)) == 10


@given(
    st.integers(0, 60),
    st.lists(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=4), max_size=30),
)
def test_never_more_than_its_capacity(
    capacity: int, forwards: list[list[tuple[int, bool]]]
) -> None:
    cache = SimulatedCache(capacity)
    prefixes = [_prefix(number, length=5 + 6 * number) for number in range(6)]
    for forward in forwards:
        begun = [(_begin(cache, prefixes[n]), ok) for n, ok in dict(forward).items()]
        assert sum(each.cached + each.stored for each, _ in begun) <= capacity
        for transaction, ok in begun:
            transaction.commit() if ok else transaction.rollback()
        assert sum(cache.cached_tokens(prefix) for prefix in prefixes) <= capacity
