from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sglang_prefill_ext.oneshot import boarding as boarding_module
from sglang_prefill_ext.oneshot.boarding import Boarding
from tests.unit.oneshot.caches import MemoryCache
from tests.unit.oneshot.jobs import job_of, request

SHORT, LONG, OTHER = [1, 2], [1, 2, 3, 4], [7, 8, 9]


def warm(*prefixes: list[int]) -> MemoryCache:
    """A cache with these prefixes, its history forgotten."""
    cache = MemoryCache()
    for prefix in prefixes:
        cache.begin(np.array(prefix, dtype=np.int32), keep=False).commit()
    cache.begun.clear()
    cache.keep_asked.clear()
    return cache


def as_lists(slots: list[Any]) -> list[list[int] | None]:
    return [None if each is None else each.tolist() for each in slots]


def test_equal_prefixes_share_a_transaction() -> None:
    cache = MemoryCache()
    jobs = [job_of(request(prefix)) for prefix in (LONG, OTHER, LONG)]
    boarding = Boarding(jobs, cache)
    assert cache.outcomes == ["", ""]
    assert as_lists(boarding.stores) == [each.slots.tolist() for each in cache.begun]
    assert boarding.held == [None, None]
    assert boarding.num_cached == 0


def test_each_adapter_has_its_own_prefixes() -> None:
    cache = MemoryCache()
    boarding = Boarding([job_of(replace(request(LONG), adapter="a"))], cache)
    assert (boarding.plan.adapter, cache.adapters) == ("a", ["a"])
    with pytest.raises(ValueError, match="unpack"):
        Boarding([job_of(replace(request(LONG), adapter=each)) for each in "ab"], cache)
    assert cache.outcomes == ["", "rollback", "rollback"]


def test_what_is_cached_is_held_and_the_rest_stored() -> None:
    cache = warm(SHORT, OTHER)
    jobs = [job_of(request(prefix)) for prefix in (LONG, OTHER, [5])]
    boarding = Boarding(jobs, cache)
    longer, whole, new = cache.begun
    assert longer.slots[:2].tolist() == cache.committed[tuple(SHORT)].tolist()
    assert as_lists(boarding.held) == [longer.slots[:2].tolist(), whole.slots.tolist(), None]
    assert as_lists(boarding.stores) == [longer.slots[2:].tolist(), None, new.slots.tolist()]
    assert [(group.held, group.fresh) for group in boarding.plan.layout.groups] == [
        (2, 2),
        (3, 0),
        (0, 1),
    ]
    assert boarding.plan.token_ids.tolist() == [3, 4, 9, 9, 5, 9]
    assert boarding.num_cached == 5
    assert [boarding.cached(job.piece) for job in jobs] == [2, 3, 0]
    storing = [boarding.is_storing(job.piece.prefix_key) for job in jobs]
    assert storing == [True, False, True]
    assert not boarding.is_storing(None)


def test_one_marked_request_is_enough_to_keep_a_prefix() -> None:
    cache = MemoryCache()
    jobs = [job_of(request(OTHER)), job_of(request(LONG)), job_of(request(LONG), keep_prefix=True)]
    Boarding(jobs, cache)
    assert cache.keep_asked == [False, True]


def test_a_cache_that_only_reads_stores_nothing() -> None:
    cache = warm(SHORT)
    cache.keeps = False
    boarding = Boarding([job_of(request(LONG))], cache)
    assert as_lists(boarding.held) == [cache.committed[tuple(SHORT)].tolist()]
    assert boarding.stores == [None]


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_all_transactions_end_together(outcome: str) -> None:
    cache = MemoryCache()
    boarding = Boarding([job_of(request(prefix)) for prefix in (LONG, OTHER, LONG)], cache)
    getattr(boarding, outcome)()
    assert cache.outcomes == [outcome, outcome]
    assert set(cache.committed) == ({tuple(LONG), tuple(OTHER)} if outcome == "commit" else set())


def test_where_one_cannot_begin_the_others_are_rolled_back() -> None:
    cache = MemoryCache(failing_begins=frozenset([3]))
    with pytest.raises(MemoryError):
        Boarding([job_of(request(prefix)) for prefix in (LONG, OTHER, [5])], cache)
    assert cache.outcomes == ["rollback", "rollback"]


def test_a_forward_that_cannot_be_planned_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(pieces: object) -> None:
        raise MemoryError

    monkeypatch.setattr(boarding_module, "plan_forward", fail)
    cache = MemoryCache()
    with pytest.raises(MemoryError):
        Boarding([job_of(request(LONG))], cache)
    assert cache.outcomes == ["rollback"]


def test_parts_of_a_prefix_and_rows_without_one_leave_the_cache_alone() -> None:
    cache = warm(SHORT)
    divided, bare = job_of(request(LONG, [9], [9]), budget=3), job_of(request())
    for number in range(len(divided.pieces)):
        divided.next_piece, divided.held = number, f"held before piece {number}"
        assert Boarding([divided], cache).held == [divided.held]
    boarding = Boarding([bare], cache)
    assert boarding.held == boarding.stores == [None]
    assert boarding.cached(bare.piece) == 0
    assert cache.begun == []


def test_a_forward_that_only_computes_a_prefix_leaves_the_cache_alone() -> None:
    cache = warm(LONG)
    divided = job_of(request(LONG, [9] * len(LONG)), budget=len(LONG))
    boarding = Boarding([divided], cache)
    assert (boarding.plan.num_tokens, boarding.plan.num_rows) == (4, 0)
    assert cache.begun == []


def test_a_prefix_that_is_held_for_later_rows_may_come_from_the_cache() -> None:
    cache = warm(SHORT)
    divided = job_of(request(LONG, *[[9, 9]] * 3), budget=6)
    boarding = Boarding([divided], cache)
    (transaction,) = cache.begun
    assert as_lists(boarding.held) == [transaction.slots[:2].tolist()]
    assert as_lists(boarding.stores) == [transaction.slots[2:].tolist()]
    assert boarding.plan.hold == (True,)


def test_without_a_cache_the_plan_is_the_whole_forward() -> None:
    boarding = Boarding([job_of(request(LONG))], None)
    assert boarding.plan.token_ids.tolist() == [*LONG, 9]
    assert (boarding.held, boarding.stores, boarding.num_cached) == ([None], [None], 0)
    boarding.commit()
