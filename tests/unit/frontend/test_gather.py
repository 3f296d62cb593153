from __future__ import annotations

import asyncio
import gc
import traceback
import weakref
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import (
    PackedForwardError,
    PackingError,
    PrefillExtError,
    RequestAbortedError,
)
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.gather import Gatherer, _of_its_own
from sglang_prefill_ext.wire.status import BAD_ENDS
from sglang_prefill_ext.wire.stock_reason import StockReason
from tests.unit.frontend.links import StubRequest
from tests.unit.waiting import until

LONG_S = 60.0


def _config(max_items: int, max_wait_s: float) -> PrefillOnlyConfig:
    return PrefillOnlyConfig(gather_rows=max_items, gather_ms=round(max_wait_s * 1e3))


class Server:
    """Answers items with ten times their value, once the test allows it."""

    def __init__(self, *, open_at_once: bool = True) -> None:
        self.batches: list[tuple[object, list[int]]] = []
        self.cancelled = 0
        self.open = asyncio.Event()
        if open_at_once:
            self.open.set()

    async def __call__(self, kind: object, items: list[int]) -> Sequence[int | Exception]:
        self.batches.append((kind, list(items)))
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if 13 in items:
            raise LookupError("the whole batch")
        return [ValueError(item) if item < 0 else 10 * item for item in items]

    def gatherer(self, max_items: int = 8, max_wait_s: float = LONG_S) -> Gatherer[int, int]:
        return Gatherer(self, _config(max_items, max_wait_s))


async def _settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_calls_of_one_moment_share_a_batch() -> None:
    server = Server()
    gatherer = server.gatherer()
    found = await asyncio.gather(*(gatherer.ask("a", [n, n + 1]) for n in (1, 5)))
    assert found == [[10, 20], [50, 60]]
    assert server.batches == [("a", [1, 2, 5, 6])]


async def test_kinds_are_kept_apart() -> None:
    server = Server()
    gatherer = server.gatherer()
    assert await asyncio.gather(gatherer.ask("a", [1]), gatherer.ask("b", [2])) == [[10], [20]]
    assert sorted(server.batches) == [("a", [1]), ("b", [2])]  # type: ignore[type-var]


async def test_a_lone_call_does_not_wait() -> None:
    server = Server()
    gatherer = server.gatherer()
    async with asyncio.timeout(60):
        for item in range(3):
            assert await gatherer.ask("a", [item]) == [10 * item]


async def test_calls_gather_while_a_batch_is_served() -> None:
    server = Server(open_at_once=False)
    gatherer = server.gatherer()
    tasks = [asyncio.create_task(gatherer.ask("a", [0]))]
    await until(lambda: len(server.batches) == 1)
    for item in (1, 2, 3):
        tasks.append(asyncio.create_task(gatherer.ask("a", [item])))
    await _settle()
    assert server.batches == [("a", [0])]
    server.open.set()
    assert await asyncio.gather(*tasks) == [[0], [10], [20], [30]]
    assert server.batches[1:] == [("a", [1, 2, 3])]


async def test_the_next_batch_is_served_before_calls_are_told_their_answers() -> None:
    happened: list[object] = []
    door = asyncio.Event()

    async def serve(_: object, items: list[int]) -> list[int]:
        happened.append(list(items))
        await door.wait()
        return items

    gatherer = Gatherer(serve, _config(8, LONG_S))

    async def ask(item: int) -> None:
        await gatherer.ask("a", [item])
        happened.append(f"told {item}")

    first = asyncio.create_task(ask(1))
    await until(lambda: happened == [[1]])
    second = asyncio.create_task(ask(2))
    await _settle()
    door.set()
    await asyncio.gather(first, second)
    assert happened == [[1], [2], "told 1", "told 2"]


async def test_a_batch_starts_once_it_is_large_enough() -> None:
    server = Server(open_at_once=False)
    gatherer = server.gatherer(max_items=2)
    tasks = [asyncio.create_task(gatherer.ask("a", [0]))]
    await until(lambda: len(server.batches) == 1)
    tasks += [asyncio.create_task(gatherer.ask("a", [item])) for item in (1, 2, 3)]
    await _settle()
    assert server.batches == [("a", [0]), ("a", [1, 2])]
    server.open.set()
    assert await asyncio.gather(*tasks) == [[0], [10], [20], [30]]


async def test_a_batch_starts_once_it_has_waited() -> None:
    server = Server(open_at_once=False)
    gatherer = server.gatherer(max_wait_s=0.02)
    tasks = [asyncio.create_task(gatherer.ask("a", [0]))]
    await until(lambda: len(server.batches) == 1)
    tasks.append(asyncio.create_task(gatherer.ask("a", [1])))
    await until(lambda: len(server.batches) == 2)
    server.open.set()
    assert await asyncio.gather(*tasks) == [[0], [10]]


async def test_a_large_call_neither_waits_nor_takes_others_along() -> None:
    server = Server(open_at_once=False)
    gatherer = server.gatherer(max_items=3)
    tasks = [asyncio.create_task(gatherer.ask("a", items)) for items in ([1], [2, 3, 4], [5])]
    tasks.append(asyncio.create_task(gatherer.ask("a", [6], alone=True)))
    await until(lambda: len(server.batches) == 3)
    assert server.batches == [("a", [1, 5]), ("a", [2, 3, 4]), ("a", [6])]
    server.open.set()
    assert await asyncio.gather(*tasks) == [[10], [20, 30, 40], [50], [60]]


async def test_an_item_fails_for_its_own_call_only() -> None:
    gatherer = Server().gatherer()
    asked = (gatherer.ask("a", items) for items in ([1], [2, -3], [4]))
    good, bad, other = await asyncio.gather(*asked, return_exceptions=True)
    assert (good, other) == ([10], [40])
    assert isinstance(bad, ValueError)


async def test_a_batch_that_fails_fails_for_all_and_the_next_one_is_served() -> None:
    gatherer = Server().gatherer()
    asked = (gatherer.ask("a", [item]) for item in (1, 13))
    assert {type(e) for e in await asyncio.gather(*asked, return_exceptions=True)} == {LookupError}
    assert await gatherer.ask("a", [2]) == [20]


class OddError(Exception):
    """Cannot be copied: its constructor takes other arguments than `args` has."""

    def __init__(self, *, code: int) -> None:
        super().__init__(code)


class Panic(BaseException):
    """Stands for a panic of a tokenizer in Rust."""


@pytest.mark.parametrize("end", [Panic("in Rust"), asyncio.CancelledError()])
async def test_a_batch_that_ends_without_an_answer_leaves_nobody_waiting(
    end: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    ends = [end]

    async def serve(_kind: object, items: list[int]) -> list[int | Exception]:
        await asyncio.sleep(0)
        if ends:
            raise ends.pop()
        return [*items]

    gatherer = Gatherer[int, int](serve, _config(8, LONG_S))
    asking = [asyncio.create_task(gatherer.ask("a", [n])) for n in (0, 1, 2)]
    await asyncio.sleep(0)
    asking[0].cancel()
    found = await asyncio.wait_for(asyncio.gather(*asking, return_exceptions=True), 60)
    assert [type(each) for each in found[1:]] == [PackedForwardError] * 2
    assert "A batch ended without an answer" in caplog.text
    assert await asyncio.wait_for(gatherer.ask("a", [3]), 60) == [3]


@pytest.mark.parametrize("items", [[13, 1], [-1, 2]])
async def test_every_caller_raises_an_error_of_its_own(items: list[int]) -> None:
    """A shared error would keep the frames of all callers alive."""
    shared = RequestAbortedError("left")
    shared.add_note("told")

    async def serve(_kind: object, _items: list[int]) -> list[int | Exception]:
        if 13 in items:
            raise shared
        return [shared] * len(items)

    gatherer = Gatherer[int, int](serve, _config(8, LONG_S))
    asking = (gatherer.ask("a", [item]) for item in items)
    first, second = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(first, RequestAbortedError)
    assert isinstance(second, RequestAbortedError)
    assert first is not second
    assert (str(first), first.__cause__) == ("left", shared)
    assert len(traceback.extract_tb(shared.__traceback__)) <= 2


@pytest.mark.parametrize("kind", [*(end.error for end in BAD_ENDS), PackingError])
def test_errors_of_ours_can_be_copied_with_what_they_tell(kind: type[PrefillExtError]) -> None:
    error = kind("why")
    error.retry_after_s = 2.5  # type: ignore[attr-defined]
    own = _of_its_own(error)
    assert (type(own), str(own), own.retry_after_s) == (kind, "why", 2.5)  # type: ignore[attr-defined]
    assert own is not error
    assert _of_its_own(odd := OddError(code=5)) is odd
    taken = _of_its_own(StockPathTaken(StockReason.NO_ITEMS, call=[5]))
    assert isinstance(taken, StockPathTaken)
    assert (taken.reason, taken.call) == (StockReason.NO_ITEMS, [5])


async def test_who_leaves_early_takes_nobody_along() -> None:
    server = Server(open_at_once=False)
    gatherer = server.gatherer()
    staying = asyncio.create_task(gatherer.ask("a", [1]))
    leaving = asyncio.create_task(gatherer.ask("a", [2]))
    with pytest.raises(RequestAbortedError):
        await gatherer.ask("a", [3], StubRequest(patience=2))
    leaving.cancel()
    await _settle()
    assert not server.cancelled
    server.open.set()
    assert await staying == [10]


async def test_calls_gather_until_every_batch_is_served() -> None:
    doors = [asyncio.Event(), asyncio.Event()]
    started: list[list[int]] = []

    async def serve(_: object, items: list[int]) -> list[int]:
        started.append(list(items))
        if len(started) <= len(doors):
            await doors[len(started) - 1].wait()
        return items

    gatherer = Gatherer(serve, _config(2, LONG_S))
    first, second = (asyncio.create_task(gatherer.ask("a", [n, n])) for n in (1, 2))
    await until(lambda: len(started) == 2)
    doors[0].set()
    assert await first == [1, 1]
    third = asyncio.create_task(gatherer.ask("a", [3]))
    await _settle()
    assert started == [[1, 1], [2, 2]]
    doors[1].set()
    assert await asyncio.gather(second, third) == [[2, 2], [3]]


async def test_a_kind_is_forgotten_once_it_was_served(caplog: pytest.LogCaptureFixture) -> None:
    class Kind:
        """Can be referred to weakly."""

    kind = Kind()
    forgotten = weakref.ref(kind)
    server = Server(open_at_once=False)
    gatherer = server.gatherer()
    staying = asyncio.create_task(gatherer.ask(kind, [1]))
    await until(lambda: len(server.batches) == 1)
    leaving = asyncio.create_task(gatherer.ask(kind, [2]))  # gathers, with a timer
    await _settle()
    leaving.cancel()
    server.open.set()
    assert await staying == [10]
    server.batches.clear()
    del kind, staying, leaving
    await _settle()
    gc.collect()
    assert forgotten() is None
    assert not caplog.records


async def test_a_batch_ends_with_its_last_call(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(open_at_once=False)
    gatherer = server.gatherer()
    first, second = (asyncio.create_task(gatherer.ask("a", [item])) for item in (1, 2))
    await until(lambda: len(server.batches) == 1)
    third = asyncio.create_task(gatherer.ask("a", [3]))  # gathers behind the two
    await _settle()
    third.cancel()
    first.cancel()
    second.cancel()
    await _settle()
    assert (server.batches, server.cancelled) == ([("a", [1, 2])], 1)
    assert not caplog.records, "the event loop has no complaints"
    server.open.set()
    assert await gatherer.ask("a", [4]) == [40]


async def test_who_leaves_at_the_moment_of_the_start_delays_nobody_behind() -> None:
    door = asyncio.Event()
    served: list[list[int]] = []

    async def serve(_: object, items: list[int]) -> list[int]:
        served.append(list(items))
        await door.wait()
        leaving.cancel()  # in the turn of the loop in which the batch behind this one is started
        return items

    gatherer = Gatherer(serve, _config(8, LONG_S))
    first = asyncio.create_task(gatherer.ask("a", [0]))
    await until(lambda: served == [[0]])
    leaving = asyncio.create_task(gatherer.ask("a", [1]))
    await _settle()
    door.set()
    assert await first == [0]
    await _settle()
    assert leaving.cancelled()
    assert served == [[0]]
    async with asyncio.timeout(60):
        assert await gatherer.ask("a", [2]) == [2]


@given(
    calls=st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=5), min_size=1, max_size=12),
    pauses=st.lists(st.integers(0, 3), min_size=12, max_size=12),
    max_items=st.integers(1, 6),
)
def test_every_call_gets_its_own_answers(
    calls: list[list[int]], pauses: list[int], max_items: int
) -> None:
    async def run() -> None:
        server = Server()
        gatherer = server.gatherer(max_items=max_items, max_wait_s=0.0)

        async def ask(items: list[int], pause: int) -> list[int]:
            for _ in range(pause):
                await asyncio.sleep(0)
            return await gatherer.ask("a", items)

        found = await asyncio.gather(*map(ask, calls, pauses))
        assert found == [[10 * item for item in items] for items in calls]
        served = [item for _, items in server.batches for item in items]
        assert sorted(served) == sorted(item for items in calls for item in items)

    asyncio.run(run())
