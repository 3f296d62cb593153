from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.shared_device.balance import MAX_HOMES, Homes, SchedulerLoads


def loads_of(schedulers: int) -> SchedulerLoads:
    return SchedulerLoads(np.zeros(schedulers, dtype=np.int64))


@dataclass
class Published:
    timestamp: float
    dp_rank: int
    num_used_tokens: int = 0
    num_waiting_uncached_tokens: int = 0


def test_the_scheduler_with_the_fewest_tokens_is_taken() -> None:
    loads = loads_of(2)
    assert loads.place(1000) == 0
    assert [loads.place(10) for _ in range(5)] == [1] * 5
    assert loads.outstanding.tolist() == [1000, 50]


def test_answered_tokens_are_released_at_once() -> None:
    done = np.zeros(2, dtype=np.int64)
    loads = SchedulerLoads(done)
    loads.place(1000)
    loads.place(10)
    done[0] += 1000
    assert loads.place(5) == 0
    assert loads.outstanding.tolist() == [5, 10]


def test_a_prefix_returns_until_what_waits_there_is_more_than_it_saves() -> None:
    loads = loads_of(2)
    loads.place(60)
    assert loads.place(50, b"p", 40) == 1
    assert loads.place(45, b"p", 40) == 1  # 50 waits there, 60 elsewhere
    assert loads.place(45, b"p", 40) == 1  # 95 less the 40 that it saves, against 60
    assert loads.place(45, b"p", 40) == 0  # 140 less 40 is more than 60
    assert loads.place(45, b"p", 40) == 0  # and that is where it was seen last


def test_an_adapter_has_prefixes_of_its_own() -> None:
    loads = loads_of(2)
    loads.place(10)
    assert loads.place(20, b"p", 15, adapter="a") == 1
    assert loads.place(5, b"p", 15) == 0  # 20 wait there, 10 here, where it was never seen
    assert loads.place(5, b"p", 15, adapter="a") == 1
    assert loads.place(5, b"p", 15, adapter="b") == 0


def test_requests_without_a_prefix_have_no_home() -> None:
    loads = loads_of(2)
    loads.place(1)
    assert [loads.place(10), loads.place(10)] == [1, 0]


def test_the_longest_unused_prefix_is_forgotten() -> None:
    done = np.zeros(2, dtype=np.int64)
    loads = SchedulerLoads(done)
    loads.place(10)
    assert loads.place(5, b"first", 4) == 1
    for number in range(MAX_HOMES):
        rank = loads.place(1, str(number).encode(), 1)
        done[rank] += 1
    done += loads.outstanding
    assert loads.place(5, b"first", 4) == 0


def test_stock_requests_count_until_their_load_is_published() -> None:
    loads = loads_of(2)
    assert [loads.dispatch("total_tokens", 30), loads.dispatch("total_tokens", 10)] == [0, 1]
    assert loads.dispatch("total_tokens", 10) == 1
    loads.update_budget([Published(1.0, 0, 3, 4), Published(1.0, 1, 9)])
    assert loads.outstanding.tolist() == [7, 9]
    loads.dispatch("total_tokens", 5)
    loads.update_budget([Published(1.0, 0, 3, 4), Published(2.0, 1, 100)])
    assert loads.outstanding.tolist() == [12, 100]


def test_packed_and_stock_requests_see_each_other() -> None:
    loads = loads_of(2)
    loads.place(100)
    assert loads.dispatch("total_tokens", 300) == 1
    assert loads.place(10) == 0


_STEPS = st.lists(
    st.tuples(st.integers(1, 500), st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=60
)


@given(schedulers=st.integers(1, 5), steps=_STEPS)
def test_against_brute_force(schedulers: int, steps: list[tuple[int, int, int]]) -> None:
    """Every request goes where fewest tokens wait, a known prefix taken off; all are released."""
    done = np.zeros(schedulers, dtype=np.int64)
    loads = SchedulerLoads(done)
    waiting: list[list[int]] = [[] for _ in range(schedulers)]
    homes: dict[bytes, int] = {}
    for tokens, prefix_number, finished in steps:
        prefix = b"" if not prefix_number else bytes([prefix_number])
        prefix_tokens = tokens // 2
        costs = [sum(each) for each in waiting]
        if prefix in homes:
            costs[homes[prefix]] -= prefix_tokens
        rank = loads.place(tokens, prefix, prefix_tokens)
        assert rank == costs.index(min(costs))
        waiting[rank].append(tokens)
        if prefix:
            homes[prefix] = rank
        for each in range(finished):
            queue = waiting[each % schedulers]
            if queue:
                done[each % schedulers] += queue.pop(0)
        assert loads.outstanding.tolist() == [sum(each) for each in waiting]
    for rank, queue in enumerate(waiting):
        done[rank] += sum(queue)
    assert not loads.outstanding.any()


@given(schedulers=st.integers(2, 5), sizes=st.lists(st.integers(1, 900), min_size=1, max_size=80))
def test_no_scheduler_is_ahead_by_more_than_one_request(schedulers: int, sizes: list[int]) -> None:
    loads = loads_of(schedulers)
    for size in sizes:
        loads.place(size)
    assert np.ptp(loads.outstanding) <= max(sizes)


def test_homes_remember_the_last_one_and_forget_the_longest_unused() -> None:
    homes: Homes[str] = Homes()
    homes.remember("first", "a")
    homes.remember("second", "b")
    homes.remember("first", "c")
    assert homes.get("first") == "c"
    for number in range(MAX_HOMES - 1):
        homes.remember(number, "d")
    assert homes.get("second") is None
    assert homes.get("first") == "c"
