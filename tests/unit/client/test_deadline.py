from __future__ import annotations

import math

from sglang_prefill_ext.client.deadline import Deadline


def test_time_runs_out() -> None:
    clock = iter([100.0, 101.0, 106.0])
    deadline = Deadline(5, lambda: next(clock))
    assert [deadline.left_s(), deadline.left_s()] == [4.0, -1.0]


def test_without_a_timeout_there_is_always_time() -> None:
    assert Deadline(None).left_s() == math.inf
