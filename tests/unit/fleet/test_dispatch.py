"""One request over stand-ins for engines: every row is answered once, even if engines fail."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest

from sglang_prefill_ext.attach.carrier import PartAnswer
from sglang_prefill_ext.errors import EngineUnavailableError
from sglang_prefill_ext.fleet import health, replica_load
from sglang_prefill_ext.fleet.dispatch import Dispatcher
from sglang_prefill_ext.fleet.health import Health
from sglang_prefill_ext.fleet.loads import Loads
from sglang_prefill_ext.fleet.planning.cost import Speed
from sglang_prefill_ext.fleet.replica_load import ReplicaLoad
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows, rows_from_bytes
from sglang_prefill_ext.wire.read import Labels
from sglang_prefill_ext.wire.status import Status

OPTIONS = RequestOptions()
SPEED = Speed(1e-3, 1e-2)
ROWS = PackedRows(int_array(range(1, 101)), 20, int_array([4] * 20), Labels(int_array([7])))


class StubEngine:
    """Answers each row with its first token, unless `ends` says otherwise."""

    def __init__(self) -> None:
        self.asked = self.cached = 0
        self.begun, self.left = asyncio.Event(), asyncio.Event()
        self.ends: list[Status | None] = []
        self.weights = ""
        self.held = asyncio.Event()
        self.held.set()

    async def ask(self, body: bytes, options: RequestOptions) -> PartAnswer:
        self.asked += 1
        self.begun.set()
        end = self.ends.pop(0) if self.ends else Status.OK
        if end is None:
            raise EngineUnavailableError("It does not answer.")
        try:
            await self.held.wait()
        except asyncio.CancelledError:
            self.left.set()
            raise
        if end is not Status.OK:
            return PartAnswer(PackedResult(end, "so it goes", retry_after_s=3.0), 0)
        rows = rows_from_bytes(body)
        starts = rows.prefix_len + np.cumsum(rows.suffix_lens) - rows.suffix_lens
        values = rows.tokens[starts].astype(np.float32).tobytes()
        return PartAnswer(
            PackedResult(Status.OK, values=values, forwards=1, tokens_cached=self.cached),
            weights=self.weights,
        )


def fleet_of(count: int, *, extra_work: float | None = 9.0) -> tuple[Dispatcher, list[StubEngine]]:
    engines = [StubEngine() for _ in range(count)]
    loads = Loads()
    for number in range(count):
        loads[str(number)] = ReplicaLoad(SPEED, time.monotonic())
    carriers = {str(number): engine for number, engine in enumerate(engines)}
    return Dispatcher(carriers, loads, extra_work), engines


def assert_whole(result: PackedResult) -> None:
    assert result.status is Status.OK, result
    assert result.row_values().tolist() == list(range(21, 101, 4))


def assert_idle(dispatcher: Dispatcher) -> None:
    assert not any(load.parts or load.tokens for load in dispatcher.loads.values())


async def test_a_request_is_divided_and_its_answers_joined() -> None:
    dispatcher, engines = fleet_of(3)
    assert_whole(await dispatcher.answer(ROWS, OPTIONS))
    assert [engine.asked for engine in engines] == [1, 1, 1]
    assert dispatcher.attempts.counts == {"requests": 1, "divided": 1, "parts": 3}
    assert_idle(dispatcher)
    (took_s,) = dispatcher.took_s
    assert 0 < took_s < 10


async def test_without_extra_work_a_request_stays_whole() -> None:
    dispatcher, engines = fleet_of(3, extra_work=0.0)
    assert_whole(await dispatcher.answer(ROWS, OPTIONS))
    assert sum(engine.asked for engine in engines) == 1


@pytest.mark.parametrize("end", [None, Status.FAILED, Status.REJECTED])
async def test_a_part_that_failed_is_tried_once_elsewhere(end: Status | None) -> None:
    dispatcher, engines = fleet_of(2)
    engines[0].ends = [end]
    assert_whole(await dispatcher.answer(ROWS, OPTIONS))
    assert [engine.asked for engine in engines] == [1, 2]
    assert dispatcher.attempts.counts["retried"] == 1
    assert_idle(dispatcher)


@pytest.mark.parametrize("end", [None, Status.FAILED, Status.REJECTED])
async def test_a_part_that_fails_twice_ends_the_request_and_is_named(end: Status | None) -> None:
    dispatcher, engines = fleet_of(2)
    engines[0].ends, engines[1].ends = [end, end], [Status.OK, end, end]
    result = await dispatcher.answer(ROWS, OPTIONS)
    assert result.status is (end or Status.UNREACHABLE)
    assert not dispatcher.took_s
    assert "Part 1 of 2 (10 rows, at" in result.message
    if end is Status.REJECTED:
        assert result.retry_after_s == 3.0
    assert_idle(dispatcher)


@pytest.mark.parametrize("fails", [True, False])
async def test_an_engine_fails_if_another_one_serves_its_parts_and_is_no_faster(
    monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    monkeypatch.setattr(health, "_RETRY_S", 1e6)
    dispatcher, engines = fleet_of(2, extra_work=0.0)
    for engine in engines[: 2 - fails]:  # or the request fails everywhere
        engine.ends = [Status.FAILED]
    result = await dispatcher.answer(ROWS, OPTIONS)
    assert result.status is (Status.OK if fails else Status.FAILED)
    assert_whole(await dispatcher.answer(ROWS, OPTIONS))
    assert [engine.asked for engine in engines] == [1, 2] if fails else [2, 1]
    failed = dispatcher.loads["0"]
    assert failed.health(time.monotonic()) is (Health.SUSPECT if fails else Health.UP)
    assert not fails or failed.speed.now == SPEED


async def test_a_bad_end_cancels_the_other_parts() -> None:
    dispatcher, engines = fleet_of(2)
    engines[1].held.clear()
    engines[0].ends = [Status.ABORTED]
    result = await dispatcher.answer(ROWS, OPTIONS)
    assert result.status is Status.ABORTED
    await asyncio.wait_for(engines[1].left.wait(), 60)
    assert_idle(dispatcher)


async def test_parts_of_different_weights_are_not_joined() -> None:
    dispatcher, engines = fleet_of(3)
    engines[1].weights = "newer"
    assert_whole(await dispatcher.answer(ROWS, OPTIONS))
    assert sum(engine.asked for engine in engines) == 3 + 1
    assert dispatcher.attempts.counts == {"requests": 1, "divided": 1, "parts": 4}
    assert_idle(dispatcher)


async def test_what_every_engine_would_say_is_not_tried_again() -> None:
    dispatcher, engines = fleet_of(2)
    engines[0].ends = [Status.NOT_FINITE]
    result = await dispatcher.answer(ROWS, OPTIONS)
    assert (result.status, result.message) == (Status.NOT_FINITE, "so it goes")
    assert engines[0].asked + engines[1].asked == 2


@pytest.mark.parametrize("end", [Status.DECLINED, Status.UNFIT])
async def test_what_one_engine_cannot_do_is_asked_of_another(end: Status) -> None:
    dispatcher, engines = fleet_of(2)
    engines[0].ends = [end]
    assert_whole(await dispatcher.answer(ROWS, OPTIONS))
    assert [engine.asked for engine in engines] == [1, 2]
    assert_idle(dispatcher)
    dispatcher, engines = fleet_of(2)  # as one that has answered is faster
    engines[0].ends, engines[1].ends = [end, end], [Status.OK, end, end]
    result = await dispatcher.answer(ROWS, OPTIONS)
    assert (result.status, result.message) == (end, "so it goes")
    assert_idle(dispatcher)


async def test_an_engine_that_goes_before_its_part_is_sent_is_left_for_another_one() -> None:
    dispatcher, engines = fleet_of(2)
    gone = dispatcher.loads["1"]
    asyncio.get_running_loop().call_soon(dispatcher.loads.pop, "1")
    assert_whole(await dispatcher.answer(ROWS, OPTIONS))
    assert [engine.asked for engine in engines] == [2, 0]
    assert_idle(dispatcher)
    assert not gone.tokens


async def test_a_part_whose_only_engine_goes_before_it_is_sent_is_unreachable() -> None:
    dispatcher, engines = fleet_of(2)
    for name in ("0", "1"):
        asyncio.get_running_loop().call_soon(dispatcher.loads.pop, name)
    result = await dispatcher.answer(ROWS, OPTIONS)
    assert (result.status, engines[0].asked) == (Status.UNREACHABLE, 0)


async def test_an_engine_that_stands_still_is_left_for_another_one() -> None:
    dispatcher, engines = fleet_of(2)
    engines[0].held.clear()
    assert_whole(await asyncio.wait_for(dispatcher.answer(ROWS, OPTIONS), 60))
    assert [engine.asked for engine in engines] == [1, 2]
    assert dispatcher.attempts.counts["asked_twice"] == 1
    await asyncio.wait_for(engines[0].left.wait(), 60)
    assert_idle(dispatcher)


async def test_a_broken_connection_to_the_only_engine_is_made_anew() -> None:
    dispatcher, (engine,) = fleet_of(1)
    engine.ends = [None]
    assert_whole(await dispatcher.answer(ROWS, OPTIONS))
    assert engine.asked == 2


async def test_a_deadline_ends_all_parts() -> None:
    dispatcher, engines = fleet_of(2)
    for engine in engines:
        engine.held.clear()
    late = RequestOptions(deadline_ms=time.time() * 1e3 + 2_000)
    result = await dispatcher.answer(ROWS, late)
    assert result.status is Status.EXPIRED
    for engine in engines:
        await asyncio.wait_for(engine.left.wait(), 60)
    assert_idle(dispatcher)


async def test_clients_that_do_not_wait_for_a_late_engine_are_no_failure_of_it() -> None:
    dispatcher, (engine,) = fleet_of(1)
    engine.held.clear()
    late = RequestOptions(deadline_ms=time.time() * 1e3 + 2_500)
    results = await asyncio.gather(*(dispatcher.answer(ROWS, late) for _ in range(4)))
    assert {result.status for result in results} == {Status.EXPIRED}
    assert dispatcher.loads["0"].health(time.monotonic()) is Health.UP
    engine.held.set()
    assert_whole(await dispatcher.answer(ROWS, OPTIONS))


async def test_a_client_that_leaves_ends_all_parts() -> None:
    dispatcher, engines = fleet_of(2)
    for engine in engines:
        engine.held.clear()
    asking = asyncio.ensure_future(dispatcher.answer(ROWS, OPTIONS))
    for engine in engines:
        await engine.begun.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    for engine in engines:
        await asyncio.wait_for(engine.left.wait(), 60)
    assert_idle(dispatcher)


async def test_without_replicas_there_is_an_answer_at_once() -> None:
    dispatcher, _ = fleet_of(0)
    result = await dispatcher.answer(ROWS, OPTIONS)
    assert result.status is Status.UNREACHABLE
    assert "No engine" in result.message


async def test_a_part_whose_engine_goes_is_also_asked_of_another_one() -> None:
    dispatcher, engines = fleet_of(2)
    engines[0].held.clear()
    asking = asyncio.ensure_future(dispatcher.answer(ROWS, OPTIONS))
    await engines[0].begun.wait()
    del dispatcher.loads["0"]
    assert_whole(await asyncio.wait_for(asking, 60))
    assert [engine.asked for engine in engines] == [1, 2]


async def test_an_engine_that_answers_with_a_second_one_has_not_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica_load, "_GRACE_S", 0.0)

    async def both_answer() -> None:
        dispatcher, (first, second) = fleet_of(2, extra_work=0.0)
        first.held.clear()
        second.held.clear()
        asking = asyncio.ensure_future(dispatcher.answer(ROWS, OPTIONS))
        await asyncio.wait_for(second.begun.wait(), 60)
        first.held.set()
        second.held.set()
        assert_whole(await asking)
        health = [load.health(time.monotonic()) for load in dispatcher.loads.values()]
        assert health == [Health.UP, Health.UP]

    # Which answer is read first is left to chance.
    await asyncio.gather(*(both_answer() for _ in range(8)))


@pytest.mark.parametrize(("restarts", "asked"), [(False, [2, 0]), (True, [1, 1])])
async def test_an_engine_that_has_restarted_has_no_prefix_any_more(
    restarts: bool, asked: list[int]
) -> None:
    dispatcher, engines = fleet_of(2, extra_work=0.0)
    engines[0].cached = ROWS.prefix_len
    assert_whole(await dispatcher.answer(ROWS, OPTIONS))
    if restarts:
        dispatcher.loads["0"] = ReplicaLoad(SPEED, time.monotonic())
    # This is less than the prefix saves.
    dispatcher.loads["0"].reported(0.1, time.monotonic())
    assert_whole(await dispatcher.answer(ROWS, OPTIONS))
    assert [engine.asked for engine in engines] == asked
