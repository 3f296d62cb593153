from __future__ import annotations

import pytest

from bench.simulation.variants import VARIANTS, OtherOrder, Variant
from sglang_prefill_ext.config import Order
from sglang_prefill_ext.scheduling.budget import refusal
from sglang_prefill_ext.scheduling.job import Job
from sglang_prefill_ext.scheduling.queue import JobQueue
from sglang_prefill_ext.scheduling.split import split_request
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Labels


class Clock:
    """Tokens processed, set by hand."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def _push(queue: JobQueue, number: int, tokens: int, *, mark: int = 0, cached: int = 0) -> None:
    prefix = tokens - 1
    rows = PackedRows(int_array([number] * tokens), prefix, int_array([1]), Labels(int_array([1])))
    job = Job(str(number), rows, number=number, mark=mark, cached_tokens=cached)
    job.pieces = split_request(rows, Variant("", Order.FCFS).policy(Clock(), 0).budget)
    queue.push(job)


def _order(queue: JobQueue) -> list[int]:
    return [job.number for job in queue]


def test_lpm_takes_the_most_cached_tokens_and_then_the_first_come() -> None:
    queue = Variant("lpm", OtherOrder.LPM).policy(Clock(), 0).new_queue()
    for number, cached in enumerate([0, 40, 10, 40, 0]):
        _push(queue, number, 100, cached=cached)
    assert _order(queue) == [1, 3, 2, 0, 4]


def test_hrrn_looks_at_the_ratio_of_the_moment() -> None:
    clock = Clock()
    queue = Variant("hrrn", OtherOrder.HRRN).policy(clock, 0).new_queue()
    _push(queue, 0, 100, mark=0)
    _push(queue, 1, 10, mark=95)
    clock.now = 100  # (100 + 100) / 100 and (5 + 10) / 10
    assert _order(queue) == [0, 1]
    clock.now = 120  # (120 + 100) / 100 and (25 + 10) / 10
    assert _order(queue) == [1, 0]


def test_hrrn_needs_no_time_for_what_is_cached_and_keeps_equals_in_order() -> None:
    clock = Clock()
    queue = Variant("hrrn", OtherOrder.HRRN).policy(clock, 0).new_queue()
    for number, cached in enumerate([0, 50, 0]):
        _push(queue, number, 100, cached=cached)
    assert _order(queue) == [0, 1, 2]
    clock.now = 1
    assert _order(queue) == [1, 0, 2]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_nothing_is_rejected(variant: Variant) -> None:
    policy = variant.policy(Clock(), 0)
    queue = policy.new_queue()
    for number in range(100):
        _push(queue, number, 8192)
    rows = next(iter(queue)).load
    assert not refusal(policy.limits, queue.load, rows)
