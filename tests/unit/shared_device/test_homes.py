from __future__ import annotations

from sglang_prefill_ext.shared_device.balance import MAX_HOMES, Homes


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
