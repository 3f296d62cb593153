"""Has the calls of a router's session served: rows by all engines, SGLang's own calls by one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

from sglang_prefill_ext.attach.messages import Abort, RowsAnswer, Stock
from sglang_prefill_ext.attach.session import Session
from sglang_prefill_ext.errors import EngineUnavailableError, PackedForwardError
from sglang_prefill_ext.fleet.dispatch import Dispatcher
from sglang_prefill_ext.fleet.whole import WholeRequests
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows
from sglang_prefill_ext.wire.status import Status

logger = logging.getLogger(__name__)


class Calls:
    """Takes the calls that a session sends to its engine; here, that is the whole fleet.

    Attributes:
        session: set before it sends anything.
    """

    session: Session

    def __init__(self, dispatcher: Dispatcher, whole: WholeRequests) -> None:
        self._dispatcher = dispatcher
        self._whole = whole
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def take_rows(self, rid: str, rows: PackedRows, options: RequestOptions) -> None:
        """Serve rows of the session; engines that all hang hold them no longer than is allowed."""
        options = options.within(self.session.facts.config.timeout_ms)
        self._begin(rid, self._serve(rid, rows, options))

    def take(self, message: Stock | Abort) -> None:
        """Serve another call of the session, or end one."""
        if not isinstance(message, Abort):
            self._begin(message.rid, self._hand_on(message))
        elif (task := self._tasks.get(message.rid)) is not None:
            task.cancel()

    def cancel(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    def _begin(self, rid: str, work: Coroutine[None, None, None]) -> None:
        task = self._tasks[rid] = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self._tasks.pop(rid, None))

    async def _serve(self, rid: str, rows: PackedRows, options: RequestOptions) -> None:
        try:
            result = await self._dispatcher.answer(rows, options)
        except Exception as error:
            logger.exception("A packed request could not be divided")
            result = PackedResult(Status.FAILED, f"{type(error).__name__}: {error}")
        self.session.deliver(RowsAnswer(rid, result))

    async def _hand_on(self, call: Stock) -> None:
        try:
            self.session.deliver(await self._whole.served(lambda replica: replica.call(call)))
        except EngineUnavailableError as error:
            self.session.end_stock(call.rid, error)
        except Exception as error:
            logger.exception("A call could not be handed on")
            self.session.end_stock(call.rid, PackedForwardError(f"{type(error).__name__}: {error}"))
