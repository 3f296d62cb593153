"""Batches of items on a scheduler with given failures; each item is one row of one token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import numpy as np
import pytest

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import PackedForwardError, RequestAbortedError
from sglang_prefill_ext.frontend.batch_exchange import BatchExchange, ReadOut, served_prompts
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.frontend.prompt_batch import PackedGroup
from sglang_prefill_ext.frontend.worker import Worker
from sglang_prefill_ext.wire.arrays import Float32Array, int_array
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows
from sglang_prefill_ext.wire.read import Labels
from tests.unit.frontend.links import StubLink, path_of, stub_answer
from tests.unit.waiting import until


class Group(PackedGroup):
    """A group of items in order; `size` of them share a packed request."""

    def tables(self, values: Float32Array) -> list[Float32Array]:
        if len(values) != len(self.members):
            raise ValueError("cannot be divided")
        return [values[number : number + 1] for number in range(len(values))]


def groups_of(size: int, items: list[int]) -> Sequence[Group]:
    def group(members: list[int]) -> Group:
        tokens, ones = [items[each] for each in members], [1] * len(members)
        rows = PackedRows(int_array(tokens), 0, int_array(ones), Labels(int_array([5])))
        return Group(members, rows)

    numbers = list(range(len(items)))
    return [group(numbers[start : start + size]) for start in numbers[::size]]


class Setup:
    def __init__(self, **limits: int) -> None:
        self.link = StubLink()
        self.link.admitted = 1
        path = path_of(self.link, PrefillOnlyConfig(gather_rows=4, **limits), max_row_tokens=100)
        self.exchange = path.exchange
        self.batches: BatchExchange[int] = BatchExchange(
            path, Worker("test"), size_of=lambda _: 1, pack=groups_of, admits=lambda _: False
        )
        self.held: list[tuple[str, PackedRows]] = []
        self.hold_single = False
        self.link.on_send = self.serve

    def serve(self, rid: str, rows: PackedRows) -> None:
        """Requests with a 13 fail if they have other rows; a 14 gets an answer of a wrong size."""
        if rows.num_rows == 1 and self.hold_single:
            self.held.append((rid, rows))
        elif 13 in rows.tokens and rows.num_rows > 1:
            self.deliver(rid, stub_answer("failed", "company"))
        elif 14 in rows.tokens:
            self.deliver(rid, stub_answer(values=[0.0] * 9))
        elif 15 in rows.tokens:
            self.deliver(rid, stub_answer("aborted", "left"))
        else:
            self.answer(rid, rows)

    def answer(self, rid: str, rows: PackedRows) -> None:
        self.deliver(rid, stub_answer(values=[float(each) for each in rows.tokens]))

    def deliver(self, rid: str, answer: PackedResult) -> None:
        asyncio.get_running_loop().call_soon(self.exchange.deliver, rid, answer)

    async def ask(self, items: list[int], size: int) -> list[ReadOut | Exception]:
        return await self.batches.read(size, RequestOptions(), items)


def shown(outcomes: Sequence[ReadOut | Exception]) -> list[object]:
    return [each.table.tolist() if isinstance(each, ReadOut) else type(each) for each in outcomes]


async def test_calls_with_about_the_same_time_left_travel_together_by_the_latest_deadline() -> None:
    setup, now_ms = Setup(), time.time() * 1e3
    times = [(60_000.0, [1, 2]), (None, [3]), (60_001.5, [4]), (600_000.0, [5]), (60_001.0, [6])]

    async def ask(left_ms: float | None, items: list[int]) -> list[ReadOut]:
        options = RequestOptions(deadline_ms=None if left_ms is None else now_ms + left_ms)
        return await setup.batches.ask(4, options, items, None)

    found = await asyncio.gather(*(ask(*each) for each in times))
    assert [[each.table.tolist() for each in outs] for outs in found] == [
        [[float(item)] for item in items] for _, items in times
    ]
    sent = [rows.tokens.tolist() for _, rows in setup.link.sent]
    assert sorted(sent) == [[1, 2, 4, 6], [3], [5]]
    deadlines = {
        rows[0]: each.deadline_ms for rows, each in zip(sent, setup.link.options, strict=True)
    }
    assert deadlines == {1: now_ms + 60_001.5, 3: None, 5: now_ms + 600_000.0}


async def test_items_of_a_failed_forward_are_asked_again_all_at_once() -> None:
    setup = Setup()
    setup.hold_single = True
    asking = asyncio.ensure_future(setup.ask([1, 13, 3], size=3))
    await until(lambda: len(setup.held) == 3)
    for rid, rows in reversed(setup.held):
        setup.answer(rid, rows)
    assert shown(await asyncio.wait_for(asking, 60)) == [[1.0], [13.0], [3.0]]


async def test_an_answer_that_cannot_be_read_fails_for_its_own_items_and_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = Setup()
    outcomes = await setup.ask([1, 14, 3, 4], size=2)
    assert shown(outcomes) == [PackedForwardError, PackedForwardError, [3.0], [4.0]]
    assert "ValueError: cannot be divided" in str(outcomes[0])
    assert "cannot be divided" in caplog.text


async def test_what_the_scheduler_says_of_a_group_is_told_as_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = Setup()
    assert shown(await setup.ask([15, 2], size=1)) == [RequestAbortedError, [2.0]]
    assert not caplog.records


@pytest.mark.parametrize("limit", ["max_queued_tokens", "max_queued_rows"])
async def test_groups_that_no_queue_would_take_together_are_sent_in_turns(limit: str) -> None:
    setup = Setup(**{limit: 3})
    under_way: list[int] = []

    def serve(rid: str, rows: PackedRows) -> None:
        under_way.append(setup.exchange.in_flight)
        setup.answer(rid, rows)

    setup.link.on_send = serve
    items = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert shown(await setup.ask(items, size=1)) == [[float(each)] for each in items]
    assert under_way == [1, 2, 3] * 3
    under_way.clear()
    assert shown(await setup.ask(items, size=4)) == [[float(each)] for each in items]
    assert under_way == [1, 1, 1]


async def test_no_group_goes_on_behind_the_back_of_a_batch_that_ended() -> None:
    setup = Setup()
    setup.hold_single = True
    asking = asyncio.ensure_future(setup.ask([1, 2], size=1))
    await until(lambda: len(setup.held) == 2)
    (first, _), (second, rows) = setup.held
    setup.exchange._pending[first].cancel()  # from within
    for _ in range(5):
        await asyncio.sleep(0)
    assert not asking.done()
    setup.answer(second, rows)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asking, 60)
    assert setup.exchange.in_flight == 0


def test_prompts_that_are_read_apart_have_their_own_cached_tokens() -> None:
    read_outs = [
        ReadOut(np.zeros((1, 1), np.float32), cached, 0.1 * cached, 1 - 0.1 * cached)
        for cached in (0, 4)
    ]
    served = served_prompts([3, 8], read_outs, new_tokens=1)
    assert served.prompt_tokens.tolist() == [3, 8]
    assert served.cached_tokens.tolist() == [0, 4]
    assert (served.num_prompts, served.new_tokens) == (2, 1)
    assert (served.queue_s, served.compute_s) == (0.4, 1.0)
