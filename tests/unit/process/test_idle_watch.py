from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.process.idle_watch import IdleWatch


def test_it_settles_once_after_work() -> None:
    watch = IdleWatch(3, collections=10)
    seen = [watch.is_due(float(now), 10 + (now > 1), busy=False) for now in range(8)]
    assert seen == [False] * 5 + [True] * 3  # quiet since second 2
    watch.note_settled(12)
    assert not any(watch.is_due(float(now), 12, busy=False) for now in range(8, 30))


def test_a_server_that_did_nothing_is_left_alone() -> None:
    watch = IdleWatch(3, collections=10)
    assert not any(watch.is_due(float(now), 10, busy=False) for now in range(30))


def test_requests_under_way_are_work_even_if_they_allocate_nothing() -> None:
    watch = IdleWatch(3)
    assert not watch.is_due(0.0, 5, busy=True)
    assert not any(watch.is_due(float(now), 5, busy=True) for now in range(1, 30))
    assert not watch.is_due(31.0, 5, busy=False)
    assert watch.is_due(32.0, 5, busy=False)


def test_zero_never_settles() -> None:
    watch = IdleWatch(0)
    assert not any(watch.is_due(float(now), 5, busy=False) for now in range(30))


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=40),
)
def test_it_is_due_only_after_a_quiet_time(idle_s: int, steps: list[tuple[int, bool]]) -> None:
    watch, collections, worked_s = IdleWatch(idle_s), 0, 0
    watch.is_due(0.0, 0, busy=False)
    for now, (more, busy) in enumerate(steps, start=1):
        collections += more
        if more or busy:
            worked_s = now
        due = watch.is_due(float(now), collections, busy=busy)
        assert due == (collections > 0 and now - worked_s >= idle_s)
