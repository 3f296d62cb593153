from __future__ import annotations

import pytest

from sglang_prefill_ext.shared_device.balance import MAX_HOMES, Homes, soonest


@pytest.mark.parametrize(
    ("waiting", "saved", "place"),
    [
        ([5, 3, 3], [0, 0, 0], 1),  # the least, of equals the first
        ([5, 3, 3], [3, 0, 0], 0),  # what waits there beyond the least is less than it saves
        ([5, 3, 3], [2, 0, 0], 0),  # as much, and it is the first
        ([3, 3, 5], [0, 0, 2], 0),
        ([6, 3, 3], [2, 0, 0], 1),  # it is more
        ([6, 3, 5], [4, 0, 4], 2),  # of several who have it
    ],
)
def test_a_request_goes_where_it_is_done_first(
    waiting: list[int], saved: list[int], place: int
) -> None:
    assert soonest(waiting, saved) == place


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
