"""Broker, connection and session together, over a real socket; the engine is a stub."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import signal
import socket
import stat
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from sglang_prefill_ext.attach import messages
from sglang_prefill_ext.attach.broker import Broker
from sglang_prefill_ext.attach.connection import EngineConnection
from sglang_prefill_ext.attach.messages import (
    Stock,
    StockAnswer,
    StockError,
    StockScore,
    StockVectors,
)
from sglang_prefill_ext.attach.session import Session
from sglang_prefill_ext.errors import (
    DeadlineExceededError,
    EngineUnavailableError,
    PackedForwardError,
    PrefillExtError,
    RequestAbortedError,
    RequestError,
    ServerBusyError,
)
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.process.collector import GcAction, GcReport
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows, to_bytes
from sglang_prefill_ext.wire.read import Labels
from sglang_prefill_ext.wire.status import Status
from sglang_prefill_ext.wire.stock_reason import StockReason
from tests.unit.attach.engines import StubCollector, StubEngine, attached, facts
from tests.unit.frontend.links import stub_answer
from tests.unit.waiting import until

ROWS = PackedRows(int_array([1, 2, 3]), 1, int_array([1, 1]), Labels(int_array([4, 5])))
NO_OPTIONS = RequestOptions()
ROOT = Path(__file__).parents[3]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "private" / "engine.sock"


def mode_of(path: Path) -> int | None:
    return stat.S_IMODE(path.stat().st_mode) if path.exists() else None


async def ask(
    session: Session, options: RequestOptions = NO_OPTIONS, rows: PackedRows = ROWS
) -> PackedResult:
    async with session.exchange.admitted(options):
        return await session.exchange.ask(rows, options, None)


@asynccontextmanager
async def waiting(
    engine: StubEngine, path: Path
) -> AsyncIterator[tuple[Broker, EngineConnection, asyncio.Future[PackedResult]]]:
    """A front end with a call that its engine does not answer by itself."""
    engine.fall_silent()
    async with attached(engine, path) as (broker, connection, _):
        asking = asyncio.ensure_future(ask(connection.session))
        await until(lambda: engine.link.sent)
        yield broker, connection, asking


async def test_a_packed_request_reaches_the_engine_and_its_answer_comes_back(path: Path) -> None:
    engine = StubEngine()
    options = RequestOptions(priority=3, keep_prefix=True)
    async with attached(engine, path) as (broker, connection, _):
        assert mode_of(path) == 0o600
        answer = await ask(connection.session, options)
        assert answer.row_values().tolist() == [0.0] * 4
        assert (answer.forwards, answer.tokens_computed, answer.tokens_cached) == (1, 5, 1)
        ((_, sent),) = engine.link.sent
        assert sent.tokens.tolist() == [1, 2, 3]
        assert engine.link.options == [options]
        assert [peer["in_flight"] for peer in broker.peers()] == [0]
        assert connection.session.in_flight == 0
    assert engine.link.admitted == 0
    assert mode_of(path) is None


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("failed", PackedForwardError),
        ("aborted", RequestAbortedError),
        ("expired", DeadlineExceededError),
        ("rejected", ServerBusyError),
    ],
)
async def test_a_bad_end_is_the_callers_error(
    path: Path, status: str, error: type[PrefillExtError]
) -> None:
    engine = StubEngine()
    engine.answer = lambda rows: stub_answer(status, "so it goes", retry_after_s=2.5)  # type: ignore[method-assign]
    engine.link.on_send = lambda rid, rows: engine.exchange.deliver(rid, engine.answer(rows))
    async with attached(engine, path) as (_, connection, _):
        with pytest.raises(error, match="so it goes") as caught:
            await ask(connection.session)
        assert getattr(caught.value, "retry_after_s", 2.5) == 2.5


async def test_whatever_goes_wrong_in_the_engine_is_answered(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = StubEngine()

    def send(rid: str, rows: PackedRows) -> None:
        raise OSError("no space left")

    engine.link.on_send = send
    async with attached(engine, path) as (_, connection, _):
        with pytest.raises(PackedForwardError, match="OSError: no space left"):
            await asyncio.wait_for(ask(connection.session), 60)
    assert "A packed request of a front end failed" in caplog.text


async def test_the_engine_puts_an_id_in_the_place_of_an_adapters_name(path: Path) -> None:
    engine = StubEngine()
    async with attached(engine, path) as (_, connection, _):
        await ask(connection.session, rows=replace(ROWS, adapter="tuned"))
        with pytest.raises(RequestError, match="adapter: no 'other'") as caught:
            await ask(connection.session, rows=replace(ROWS, adapter="other"))
    assert caught.value.field == "adapter"
    assert [rows.adapter for _, rows in engine.link.sent] == ["id-of-tuned"]
    assert engine.acquired == engine.released == ["tuned"]
    assert engine.link.admitted == 0


@pytest.mark.parametrize("end", ["failed", "rejected", "left", "late"])
async def test_every_end_releases_the_adapter_once(path: Path, end: str) -> None:
    engine = StubEngine(silent=True)
    rows = replace(ROWS, adapter="tuned")
    if end == "late":
        engine.link.is_open.clear()
    async with attached(engine, path) as (_, connection, _):
        options = RequestOptions(deadline_ms=time.time() * 1e3 + 3000 if end == "late" else None)
        asking = asyncio.ensure_future(ask(connection.session, options, rows))
        await until(lambda: engine.acquired and (engine.link.sent or end == "late"))
        assert engine.released == []
        if end == "left":
            asking.cancel()
        elif end != "late":
            ((rid, _),) = engine.link.sent
            engine.exchange.deliver(rid, stub_answer(end))
        await asyncio.wait([asking])
        await until(lambda: engine.released)
    assert asking.cancelled() if end == "left" else isinstance(asking.exception(), PrefillExtError)
    assert engine.acquired == engine.released == ["tuned"]


async def test_a_caller_that_leaves_aborts_its_request_in_the_engine(path: Path) -> None:
    engine = StubEngine()
    async with waiting(engine, path) as (_, connection, asking):
        asking.cancel()
        await until(lambda: engine.link.aborted)
        assert engine.link.aborted == [rid for rid, _ in engine.link.sent]
        assert (connection.session.in_flight, engine.exchange.in_flight) == (0, 0)


async def test_a_front_end_that_dies_leaves_nothing_in_the_engine(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "BEAT_S", 0.05)
    engine = StubEngine(silent=True)
    broker = Broker(engine, path)
    other = EngineConnection(path, FrontendMetrics(), StubCollector())
    async with broker.running(), other.running():
        connection = EngineConnection(path, FrontendMetrics(), StubCollector())
        async with connection.running():
            assert await connection.wait_attached(60)
            session = connection.session
            monkeypatch.setattr(session, "abort", lambda rid: None)  # as a dead one does
            asking = asyncio.ensure_future(ask(session))
            await until(lambda: engine.link.sent)
        with pytest.raises(EngineUnavailableError):
            await asking
        await until(lambda: engine.link.aborted)
        await until(lambda: len(broker.peers()) == 1)
    assert engine.exchange.in_flight == 0


def watched(path: Path) -> tuple[EngineConnection, list[bool]]:
    """A connection, and whether it takes new calls, after every change."""
    changes: list[bool] = []

    def note(session: Session | None) -> None:
        changes.append(session is not None)

    return EngineConnection(path, FrontendMetrics(), StubCollector(), note), changes


async def test_an_engine_that_goes_ends_its_calls_and_one_that_comes_takes_new_ones(
    path: Path,
) -> None:
    engine = StubEngine(silent=True)
    connection, changes = watched(path)
    async with connection.running():
        with pytest.raises(EngineUnavailableError, match="--prefill-only-attach"):
            _ = connection.session
        assert not await connection.wait_attached(0.05)
        async with Broker(engine, path).running():
            assert await connection.wait_attached(60)
            session = connection.session
            packed = asyncio.ensure_future(ask(session))
            stock = asyncio.ensure_future(session.ask(StockScore("s", {}, {})))
            await until(lambda: engine.link.sent and engine.stock_calls)
            assert session.in_flight == 2
        for asking in (packed, stock):
            with pytest.raises(EngineUnavailableError, match="Try again"):
                await asking
        for late in (ask(session), session.ask(StockScore("late", {}, {}))):
            with pytest.raises(EngineUnavailableError):
                await asyncio.wait_for(late, 10)
        with pytest.raises(EngineUnavailableError):
            _ = connection.session
        async with Broker(StubEngine(), path).running():
            assert await connection.wait_attached(60)
            assert (await ask(connection.session)).status == "ok"
    assert changes == [True, False, True, False]


async def test_an_engine_that_leaves_gets_no_more_calls_and_answers_those_it_has(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(messages, "BEAT_S", 0.02)
    engine = StubEngine(silent=True)
    connection, changes = watched(path)
    async with connection.running():
        async with Broker(engine, path).running():
            assert await connection.wait_attached(60)
            session = connection.session
            asking, left = (asyncio.ensure_future(ask(session)) for _ in range(2))
            await until(lambda: len(engine.link.sent) == 2)
            engine.leaving = True
            await until(lambda: changes == [True, False])
            with pytest.raises(EngineUnavailableError, match="is going down"):
                _ = connection.session
            left.cancel()
            await until(lambda: engine.link.aborted)
            ((rid, _), _) = engine.link.sent
            engine.exchange.deliver(rid, stub_answer(values=[0.0] * 4))
            assert (await asyncio.wait_for(asking, 60)).status == "ok"
        await until(lambda: connection._session is None)
        async with Broker(StubEngine(), path).running():
            assert await connection.wait_attached(60)
            assert (await ask(connection.session)).status == "ok"
    assert changes == [True, False, True, False]
    assert caplog.text.count("The engine is going down") == 1


async def test_a_front_end_that_comes_in_a_shutdown_takes_no_call(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "BEAT_S", 3600.0)
    engine, (connection, changes) = StubEngine(), watched(path)
    engine.leaving = True
    async with Broker(engine, path).running(), connection.running():
        await until(lambda: changes == [True, False])


ENGINE = """
import asyncio, sys
from pathlib import Path
from sglang_prefill_ext.attach.broker import Broker
from tests.unit.attach.engines import StubEngine

async def main():
    engine = StubEngine(silent=True)
    async with Broker(engine, Path(sys.argv[1])).running():
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
async def test_an_engine_that_stands_still_or_dies_ends_its_calls(
    path: Path, number: signal.Signals
) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", ENGINE, path, cwd=ROOT)
    connection = EngineConnection(path, FrontendMetrics(), StubCollector())
    try:
        async with connection.running():
            assert await connection.wait_attached(60)
            asking = asyncio.ensure_future(ask(connection.session))
            await asyncio.sleep(0.2)
            assert not asking.done()
            process.send_signal(number)
            with pytest.raises(EngineUnavailableError, match="has gone"):
                await asyncio.wait_for(asking, 60)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_another_version_is_refused_with_what_to_do(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sglang_prefill_ext.attach.broker.__version__", "0.0.0")
    connection = EngineConnection(path, FrontendMetrics(), StubCollector())
    async with Broker(StubEngine(), path).running(), connection.running():
        await until(lambda: "Install the same" in caplog.text)
        await asyncio.sleep(0.1)
        with pytest.raises(EngineUnavailableError, match=r"the engine is version 0\.0\.0"):
            _ = connection.session
    assert f"Front end {os.getpid()} was refused" in caplog.text


async def test_an_engine_that_cannot_tell_its_facts_says_why_and_has_no_front_end(
    path: Path,
) -> None:
    connection = EngineConnection(path, FrontendMetrics(), StubCollector())
    broker = Broker(StubEngine(facts(class_names=["\udc80"])), path)
    async with broker.running(), connection.running():
        await until(lambda: "UnicodeEncodeError" in connection._why)
        assert broker.peers() == []


async def test_facts_of_an_engine_that_has_gone_since_begin_no_session(path: Path) -> None:
    connection, changes = watched(path)
    async with connection.running():
        connection._take(facts())
        with pytest.raises(EngineUnavailableError, match="No engine answers"):
            _ = connection.session
    assert changes == []


async def test_every_time_that_an_engine_goes_is_logged(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    connection = EngineConnection(path, FrontendMetrics(), StubCollector())
    async with connection.running():
        for times in (1, 2):
            broker = Broker(StubEngine(), path)
            async with broker.running():
                assert await connection.wait_attached(60)
                broker._peers.clear()  # one that dies says no farewell
            await until(lambda: not connection._connected)
            assert caplog.text.count("The engine has gone") == times


async def test_nothing_goes_on_once_both_have_ended(path: Path) -> None:
    async with attached(StubEngine(), path):
        pass
    await asyncio.sleep(0)  # so that what was cancelled ends
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_one_that_says_hello_again_begins_anew(path: Path) -> None:
    engine = StubEngine()
    async with waiting(engine, path) as (broker, connection, asking):
        connection._send(messages.Hello(pid=1))
        await until(lambda: engine.link.aborted)
        assert [peer["pid"] for peer in broker.peers()] == [1]
        asking.cancel()


async def test_calls_to_an_engine_that_has_forgotten_their_front_end_end(path: Path) -> None:
    async with waiting(StubEngine(), path) as (broker, connection, asking):
        broker._forget(*broker._peers)
        for call in (asyncio.ensure_future(ask(connection.session)), asking):
            with pytest.raises(EngineUnavailableError, match="Try again"):
                await asyncio.wait_for(call, 60)


async def test_an_answer_to_an_earlier_hello_ends_no_call(path: Path) -> None:
    engine = StubEngine()
    async with waiting(engine, path) as (_, connection, asking):
        session = connection.session
        connection._take(engine.facts())
        assert connection.session is session
        ((rid, _),) = engine.link.sent
        engine.exchange.deliver(rid, stub_answer(values=[0.0] * 4))
        assert (await asyncio.wait_for(asking, 60)).status == "ok"


async def test_facts_of_another_engine_end_the_session_and_its_calls(path: Path) -> None:
    async with waiting(StubEngine(), path) as (_, connection, asking):
        connection._take(facts(model="another"))
        with pytest.raises(EngineUnavailableError, match="another one now"):
            await asyncio.wait_for(asking, 60)
        assert connection.session.facts.model == "another"


async def test_a_packed_answer_that_cannot_be_read_ends_its_own_call_only(path: Path) -> None:
    async with waiting(StubEngine(), path) as (_, connection, packed):
        session = connection.session
        (rid,) = session.exchange._pending
        broken = {"type": "RowsAnswer", "rid": rid, "result": 5}
        connection._receive([msgspec.msgpack.encode(broken)])
        with pytest.raises(PackedForwardError, match="what cannot be read"):
            await asyncio.wait_for(packed, 60)
        assert connection.session is session


async def test_an_answer_that_cannot_be_read_ends_its_own_call_only(path: Path) -> None:
    engine = StubEngine()
    numbers: Any = [0.5, 0.25]  # not a list for each row
    async with waiting(engine, path) as (_, connection, packed):
        session = connection.session
        engine.stock_outcome = StockAnswer("", numbers, 7)
        with pytest.raises(PackedForwardError, match="what cannot be read"):
            await asyncio.wait_for(session.ask(StockScore("s", {}, {})), 60)
        assert connection.session is session
        ((rid, _),) = engine.link.sent
        engine.exchange.deliver(rid, stub_answer(values=[0.0] * 4))
        assert (await asyncio.wait_for(packed, 60)).status == "ok"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError("raises"), "OSError: raises"),
        (OSError("\udc80"), r"OSError: \?"),
        (None, "UnicodeEncodeError: .*"),
    ],
    ids=["raises", "raises no unicode", "cannot be encoded"],
)
async def test_a_call_of_the_engine_that_has_no_answer_fails(
    path: Path, error: Exception | None, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    # pytest cannot report a log with lone surrogates from another process.
    caplog.set_level(logging.CRITICAL, logger="sglang_prefill_ext.attach.broker")
    engine = StubEngine()

    async def serve_stock(call: Stock) -> StockError:
        if error is not None:
            raise error
        return StockError(call.rid, Status.REFUSED, "\udc80")

    engine.serve_stock = serve_stock  # type: ignore[method-assign]
    async with attached(engine, path) as (_, connection, _):
        with pytest.raises(PackedForwardError, match=rf"cannot serve this call \({told}\)"):
            await asyncio.wait_for(connection.session.ask(StockScore("s", {}, {})), 60)
        assert (await ask(connection.session)).status == "ok"


async def test_a_call_that_cannot_be_read_is_answered_and_those_behind_it_served(
    path: Path,
) -> None:
    async with attached(StubEngine(), path) as (_, connection, _):
        session = connection.session
        broken = [{"type": "Rows", "rid": "r"}, {"type": "StockScore", "rid": "s", "headers": 5}]
        stock = session._stock["s"] = asyncio.get_running_loop().create_future()
        packed = session.exchange._pending["r"] = asyncio.get_running_loop().create_future()
        for message in broken:
            connection._mailbox.send(msgspec.msgpack.encode(message))
        behind = asyncio.ensure_future(ask(session))
        assert (await asyncio.wait_for(behind, 60)).status == "ok"
        assert (await asyncio.wait_for(packed, 60)).status == "failed"
        with pytest.raises(PackedForwardError, match="cannot serve this call"):
            await asyncio.wait_for(stock, 60)
        assert connection.session is session


@pytest.mark.parametrize("broken", [{"type": "Beat", "totals": 5}, {"type": "Abort"}])
async def test_tidings_that_cannot_be_read_end_nothing(
    path: Path, broken: object, caplog: pytest.LogCaptureFixture
) -> None:
    engine = StubEngine()
    async with attached(engine, path) as (_, connection, _):
        session = connection.session
        connection._mailbox.send(msgspec.msgpack.encode(broken))
        assert (await ask(session)).status == "ok"
        assert connection.session is session
    assert "of a front end cannot be served" in caplog.text
    assert "Traceback" not in caplog.text, "nothing of ours is broken"


async def test_what_cannot_be_counted_loses_no_call_that_came_with_it(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = StubEngine()

    def count(beat: messages.Beat) -> None:
        raise ValueError("Counters can only be incremented by non-negative amounts.")

    engine.count = count  # type: ignore[method-assign]
    async with attached(engine, path) as (_, connection, _):
        connection._send(messages.Beat())  # leaves as a part of one message with the call
        assert (await asyncio.wait_for(ask(connection.session), 60)).status == "ok"
    assert "A Beat of a front end cannot be served" in caplog.text
    assert "Traceback" in caplog.text


async def test_of_two_calls_of_one_name_the_second_is_not_started(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = StubEngine(silent=True)
    async with attached(engine, path) as (_, connection, _):
        call = messages.Rows("twice", to_bytes(ROWS), NO_OPTIONS)
        for message in (call, call):
            connection._send(message)
        await until(lambda: engine.link.sent)
        connection._send(messages.Abort("twice"))
        await until(lambda: engine.link.aborted)
        assert len(engine.link.sent) == 1
        assert engine.exchange.in_flight == 0
    assert "gave two calls the same id 'twice'" in caplog.text


async def test_rows_without_a_deadline_get_the_engines_timeout(path: Path) -> None:
    engine = StubEngine()
    engine.timeout_ms = 50
    engine.link.is_open.clear()
    async with attached(engine, path) as (_, connection, _):
        own = RequestOptions(deadline_ms=time.time() * 1e3 + 1e6)
        patient = asyncio.ensure_future(ask(connection.session, own))
        with pytest.raises(DeadlineExceededError):
            await ask(connection.session, NO_OPTIONS)
        assert not patient.done()
        engine.link.is_open.set()
        await patient


@pytest.mark.parametrize("deadline_ms", [math.nan, math.inf, -math.inf])
async def test_a_deadline_that_is_no_time_fails(path: Path, deadline_ms: float) -> None:
    engine = StubEngine()
    async with attached(engine, path) as (_, connection, _):
        options = RequestOptions(deadline_ms=deadline_ms)
        with pytest.raises(PackedForwardError, match="a deadline cannot be"):
            async with connection.session.admission():
                await connection.session.exchange.ask(ROWS, options, None)
        assert not engine.link.sent


async def test_a_front_end_that_is_busy_is_not_taken_for_a_dead_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "BEAT_S", 0.02)
    engine = StubEngine(silent=True)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    async with Broker(engine, path).running():
        busy = context.socket(zmq.SocketType.DEALER)  # says hello, asks, and never beats
        busy.connect(f"ipc://{path}")
        busy.send(messages.encode(messages.Hello(pid=1)))
        busy.send(messages.encode(messages.Rows("r", to_bytes(ROWS), NO_OPTIONS)))
        came: list[messages.FromEngine] = []

        def knocks() -> int:
            while busy.poll(0):
                came.extend(map(messages.decode_from_engine, busy.recv_multipart()))
            return sum(isinstance(message, messages.Knock) for message in came)

        await until(lambda: knocks() >= 5)
        assert engine.exchange.in_flight == 1
        assert not any(isinstance(message, messages.Farewell) for message in came)
        busy.close(linger=0)
        await until(lambda: engine.link.aborted)
        assert engine.exchange.in_flight == 0


@pytest.mark.parametrize("refusing", [False, True])
async def test_an_engine_that_cannot_be_served_is_asked_less_and_less_often(
    path: Path, refusing: bool
) -> None:
    engine = StubEngine(facts(tokenizer="no tokenizer at all"))
    connection = EngineConnection(path, FrontendMetrics(), StubCollector())
    async with connection.running():
        for _ in range(2):  # one that begins anew is asked at once
            async with Broker(engine, path).running():
                await until(lambda: connection._failures == 1)
                with pytest.raises(EngineUnavailableError, match="cannot serve the engine of stub"):
                    _ = connection.session
                for wait_s in (4, 8, 16, 32, 60, 60):
                    before_s = time.monotonic()
                    connection._take(messages.Refusal("no") if refusing else engine.facts())
                    assert before_s <= connection._hello_s - wait_s <= time.monotonic()
            await until(lambda: not connection._connected)


async def test_between_two_questions_an_engine_that_cannot_be_served_is_left_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "BEAT_S", 0.01)
    engine = StubEngine(facts(tokenizer="no tokenizer at all"))
    connection = EngineConnection(path, FrontendMetrics(), StubCollector())
    begun_s = time.monotonic()
    async with Broker(engine, path).running(), connection.running():
        await asyncio.sleep(0.5)
    doublings = math.log2(max(1, (time.monotonic() - begun_s) / 0.5))
    assert engine.told <= 7 + doublings, "after 20, 40, 80 ms and so on"


async def test_nothing_is_kept_for_an_engine_that_is_away(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "BEAT_S", 0.01)
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))  # leaves a file behind
    connection = EngineConnection(path, FrontendMetrics(), StubCollector())
    async with connection.running():
        await asyncio.sleep(0.1)
        assert not connection._mailbox._unsent


async def test_nothing_is_told_where_others_could_be_listening(path: Path) -> None:
    engine = StubEngine()
    connection = EngineConnection(path, FrontendMetrics(), StubCollector())
    async with Broker(engine, path).running() as _:
        path.parent.chmod(0o777)
        async with connection.running():
            await until(lambda: "Other users may write" in connection._why)
            assert engine.told == 0
            path.parent.chmod(0o700)
            assert await connection.wait_attached(60)


def preparing() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "prefill-only-tokenizer"]


async def test_a_session_that_has_ended_is_freed_though_it_was_frozen(path: Path) -> None:
    class Freezing(StubCollector):
        def perform(self, action: GcAction, rid: str, **others: Any) -> GcReport:
            if action is GcAction.UNFREEZE:
                gc.unfreeze()
            elif action is GcAction.FREEZE:
                gc.collect()
                gc.freeze()
            return super().perform(action, rid, **others)

    connection = EngineConnection(path, FrontendMetrics(), Freezing())
    try:
        async with connection.running():
            sessions = []
            for _ in range(3):  # whatever a thread still has of it at the second one
                async with Broker(StubEngine(), path).running():
                    assert await connection.wait_attached(60)
                    sessions.append(weakref.ref(connection.session))
                await until(lambda: connection._session is None)
                await until(lambda: not preparing())  # this thread has what it prepares for
        assert sessions[0]() is None
    finally:
        gc.unfreeze()


async def test_what_a_front_end_counts_is_counted_by_the_engine(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "BEAT_S", 0.05)
    engine = StubEngine()
    async with attached(engine, path) as (_, connection, metrics):
        for _ in range(2):
            answer = await ask(connection.session)
            metrics.count_requests("packed")
            metrics.record_work(ROWS, answer)
        metrics.count_requests("failed")
        await until(lambda: engine.metrics.requests["failed"])
    assert engine.metrics.as_dict() == FrontendMetrics().as_dict() | {
        "requests": {"packed": 2, "failed": 1},
        "items": 4,
        "forwards": 2,
        "tokens_computed": 10,
    }


async def test_what_a_front_end_has_counted_last_is_counted_when_it_ends(path: Path) -> None:
    engine, metrics = StubEngine(), FrontendMetrics()
    async with Broker(engine, path).running():
        connection = EngineConnection(path, metrics, StubCollector())
        async with connection.running():
            assert await connection.wait_attached(60)
            metrics.count_requests("packed")
        await until(lambda: engine.metrics.requests == {"packed": 1})


async def test_the_engine_shows_what_its_front_ends_do(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "BEAT_S", 0.05)
    async with waiting(StubEngine(), path) as (broker, connection, asking):
        shown: dict[str, object] = {"pid": os.getpid(), "in_flight": 1}
        # The encoder may be replaced meanwhile, once a faster one is ready.
        await until(lambda: broker.peers() == [shown | {"encoder": connection.session.encoder}])
        assert connection.session.encoder
        asking.cancel()


async def test_a_call_that_is_the_engines_own_is_answered_or_ends_as_there(path: Path) -> None:
    engine = StubEngine()
    async with attached(engine, path) as (_, connection, _):
        session = connection.session
        engine.stock_outcome = StockAnswer("", [[0.5, 0.25]], 7)
        found = await session.ask(StockVectors("v", ["a"], 8, "tuned", {"x": "y"}))
        assert (found.rows, found.prompt_tokens) == ([[0.5, 0.25]], 7)
        for status, error in (
            (Status.REFUSED, RequestError),
            (Status.REJECTED, ServerBusyError),
            (Status.ABORTED, RequestAbortedError),
            (Status.UNREACHABLE, EngineUnavailableError),
            (Status.EXPIRED, DeadlineExceededError),
            (Status.FAILED, PackedForwardError),
        ):
            engine.stock_outcome = StockError("", status, "so it goes", 1.5, field="items")
            with pytest.raises(error, match="so it goes") as caught:
                await session.ask(StockScore("s", {"query": "q"}, {}))
            assert getattr(caught.value, "field", "items") == "items"
        engine.stock_outcome = None
        asking = asyncio.ensure_future(session.ask(StockScore("s", {}, {})))
        calls = len(engine.stock_calls)
        await until(lambda: len(engine.stock_calls) > calls)
        asking.cancel()
        await until(lambda: engine.abandoned)


async def test_an_engine_that_packs_nothing_says_so(path: Path) -> None:
    async with attached(StubEngine(facts(declined=StockReason.MULTI_ITEM_SCORING)), path) as (
        _,
        link,
        _,
    ):
        assert link.session.exchange.declined_reason is StockReason.MULTI_ITEM_SCORING


@pytest.mark.parametrize(
    "parts",
    [
        [b"\xc1"],
        [b""],
        [b"three", b"parts", b"of"],
        [msgspec.msgpack.encode({"type": "x" * 5_000})],
    ],
    ids=["byte", "empty", "parts", "unknown"],
)
async def test_bytes_that_are_no_message_harm_nobody(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    parts: list[bytes],
) -> None:
    monkeypatch.setattr(messages, "BEAT_S", 0.02)
    async with attached(StubEngine(), path) as (_, connection, _):
        before = connection.session
        connection._mailbox.send(*parts)
        await until(lambda: connection._session not in (None, before))
        assert (await ask(connection.session)).status == "ok"
    assert len(caplog.text) < 5_000


async def test_a_front_end_freezes_once_attached_and_collects_for_the_engine(path: Path) -> None:
    engine = StubEngine()
    metrics, collector = FrontendMetrics(), StubCollector()
    broker = Broker(engine, path)
    connection = EngineConnection(path, metrics, collector)
    async with broker.running(), connection.running():
        assert await connection.wait_attached(60)
        ((report,),) = await broker.collect_garbage(GcAction.STATS, [9, 9, 9], 60)
    assert collector.asked == [
        (GcAction.UNFREEZE, False),
        (GcAction.FREEZE, False),
        (GcAction.STATS, False),
    ]
    assert (report.role, report.thresholds) == ("stub", [9, 9, 9])


async def test_a_front_end_with_calls_under_way_is_busy(path: Path) -> None:
    collector = StubCollector()
    async with waiting(StubEngine(), path) as (broker, connection, asking):
        connection._collector = collector
        await broker.collect_garbage(GcAction.SETTLE, None, 60)
        asking.cancel()
    assert collector.asked == [(GcAction.SETTLE, True)]


async def test_a_silent_front_end_is_left_out(path: Path) -> None:
    async with attached(StubEngine(), path) as (broker, _, _):
        assert await broker.collect_garbage(GcAction.STATS, None, 0.0) == []
