"""Has the calls of a router's session served: rows by all engines, SGLang's own calls by one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

from sglang_prefill_ext.attach.messages import (
    Abort,
    FromFrontend,
    Rows,
    RowsAnswer,
    Stock,
    StockScore,
    StockVectors,
)
from sglang_prefill_ext.attach.session import Session
from sglang_prefill_ext.errors import EngineUnavailableError, PackedForwardError
from sglang_prefill_ext.fleet.dispatch import Dispatcher
from sglang_prefill_ext.fleet.whole import WholeRequests
from sglang_prefill_ext.wire.packed import PackedResult, rows_from_bytes
from sglang_prefill_ext.wire.status import Status

logger = logging.getLogger(__name__)


class Calls:
    """Takes the messages that a session sends to its engine; here, that is the whole fleet."""

    def __init__(self, dispatcher: Dispatcher, whole: WholeRequests) -> None:
        self._dispatcher = dispatcher
        self._whole = whole
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def take(self, session: Session, message: FromFrontend) -> None:
        """Serve a call of the session, or end one."""
        match message:
            case Rows():
                self._begin(message.rid, self._serve(session, message))
            case StockScore() | StockVectors():
                self._begin(message.rid, self._hand_on(session, message))
            case Abort() if message.rid in self._tasks:
                self._tasks[message.rid].cancel()

    def cancel(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    def _begin(self, rid: str, work: Coroutine[None, None, None]) -> None:
        task = self._tasks[rid] = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self._tasks.pop(rid, None))

    async def _serve(self, session: Session, message: Rows) -> None:
        try:
            rows = rows_from_bytes(message.row_bytes)
            result = await self._dispatcher.answer(rows, message.options)
        except Exception as error:
            logger.exception("A packed request could not be divided")
            result = PackedResult(Status.FAILED, f"{type(error).__name__}: {error}")
        session.deliver(RowsAnswer(message.rid, result))

    async def _hand_on(self, session: Session, call: Stock) -> None:
        try:
            session.deliver(await self._whole.served(lambda replica: replica.call(call)))
        except EngineUnavailableError as error:
            session.end_stock(call.rid, error)
        except Exception as error:
            logger.exception("A call could not be handed on")
            session.end_stock(call.rid, PackedForwardError(f"{type(error).__name__}: {error}"))
