from __future__ import annotations

import pytest

from bench.parallelism.link import Link, measure_link
from sglang_prefill_ext.shared_device.placement import usable_cores


def test_what_more_bytes_take_longer_is_the_bandwidth() -> None:
    link = Link.of_times(small_s=1e-4, large_s=1e-4 + (1 << 21) / 1e9)
    assert link.us == pytest.approx(100)
    assert link.gb_s == pytest.approx(1, rel=1e-3)


def test_two_processes_add_up() -> None:
    cores = sorted(usable_cores())
    link = measure_link([cores[0], cores[-1]])
    assert link.us > 0
    assert link.gb_s > 0
