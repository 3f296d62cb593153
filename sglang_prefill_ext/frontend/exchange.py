"""Sends a packed request to the scheduler and waits for its answer, for all kinds of calls."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from itertools import count
from typing import Any

from sglang_prefill_ext.errors import EngineUnavailableError, PrefillExtError
from sglang_prefill_ext.frontend.client_wait import outcome_while_connected, within
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.frontend.scheduler_link import SchedulerLink
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows
from sglang_prefill_ext.wire.prefix_policy import PrefixPolicy
from sglang_prefill_ext.wire.status import STOCK_ENDS, Status, end_with
from sglang_prefill_ext.wire.stock_reason import StockReason

ROWS_NAME, CALL_NAME = "packed-", "prefill-only_"
"""How names begin that no client gave: of packed requests, and of records of calls."""

_PROCESS = uuid.uuid4().hex
_numbers = count()


def unique_name(kind: str) -> str:
    """Return a name that begins with `kind`, in a tenth of the time that a new UUID takes.

    No name begins with another one, because SGLang aborts all requests whose names begin with the
    one given.
    """
    return f"{kind}{next(_numbers)}-{_PROCESS}"


class StockPathTaken(Exception):  # noqa: N818 (a signal, not an error)
    """The call must be served by the stock path, for `reason`.

    Args:
        call: the call with token ids in place of its texts, if these were encoded already, so that
            a very long text is not encoded twice. None if the call stays as it is.
    """

    def __init__(self, reason: StockReason, call: Any = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.call = call


class PackedExchange:
    """The packed requests of one front-end process that are under way.

    Args:
        one_engine: all requests go to the same engine, so what it cannot do is not tried again.

    Attributes:
        declined_reason: why all calls of this process take the stock path; None if they do not.
        tokens: sum of the tokens in these requests; a shared prefix counts once.
        closed: why nothing is answered any more; empty until `close`.
    """

    def __init__(
        self, link: SchedulerLink, *, max_row_tokens: int, one_engine: bool = True
    ) -> None:
        self.declined_reason: StockReason | None = None
        self.tokens = 0
        self.closed = ""
        self._no_cache = False
        self._link = link
        self._max_row_tokens = max_row_tokens
        self._one_engine = one_engine
        self._pending: dict[str, asyncio.Future[PackedResult]] = {}

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    def deliver(self, rid: str, answer: PackedResult) -> None:
        """Hand an answer to its call, if that is still waiting."""
        future = self._pending.get(rid)
        if future is not None and not future.done():
            future.set_result(answer)

    def close(self, why: str) -> None:
        """End every call, as the engine has gone; further ones are refused."""
        self.closed = why
        for rid in self._pending:
            self.deliver(rid, PackedResult(Status.UNREACHABLE, why))

    def earlier(self, prefixes: PrefixPolicy | None) -> PrefixPolicy | None:
        """`prefixes`, unless the last answer said that none is kept for later requests."""
        return None if self._no_cache else prefixes

    def require_open(self) -> None:
        """Raises: EngineUnavailableError: the exchange is closed."""
        if self.closed:
            raise EngineUnavailableError(self.closed)

    def admitted(
        self, options: RequestOptions, request: Any = None, *, adapter: str = ""
    ) -> AbstractAsyncContextManager[object]:
        """Wait while the engine takes no requests; hold off weight updates while inside.

        Args:
            request: of the client, see `SchedulerLink.admission`.
            adapter: that the call has acquired, for which it was admitted already; then this does
                nothing.

        Raises:
            DeadlineExceededError: upon entry; the deadline of `options` passed first.
            RequestAbortedError: upon entry; the client left first.
        """
        if adapter:
            return nullcontext()
        admission = self._link.admission(request)
        if options.deadline_ms is None:
            return admission
        return _entered_by(options.deadline_ms, admission)

    async def ask(self, rows: PackedRows, options: RequestOptions, request: Any) -> PackedResult:
        """Send one message and await its answer; call it while `admitted`.

        Args:
            request: of the client, see `outcome_while_connected`.

        Raises:
            StockPathTaken: the rows do not fit a forward or the KV pool, their values are NaN, or
                the scheduler declines them.
            RequestAbortedError: the client left, or an operator aborted the request.
            PackedForwardError: the forward failed.
            ServerBusyError: too much waits already.
            DeadlineExceededError: the deadline of `options` could not be met.
            EngineUnavailableError: the engine has gone.
            RequestError: that engine has no LoRA adapter of the requested name.
        """
        self.require_fitting(int(rows.suffix_lens.max()), prefix_tokens=rows.prefix_len)
        answer = await self.round_trip(rows, options, request)
        if answer.status is Status.OK:
            self._no_cache = answer.no_cache
            return answer
        if answer.status is Status.DECLINED:
            reason = StockReason(answer.message)
            if self._one_engine:
                self.declined_reason = reason
            raise StockPathTaken(reason)
        if answer.status is Status.UNFIT and self._one_engine:
            self._max_row_tokens = min(self._max_row_tokens, answer.longest_row)
        raise _bad_end(answer)

    def require_fitting(self, row_tokens: int, *, prefix_tokens: int = 0) -> None:
        """Check the longest row of a request.

        Args:
            row_tokens: tokens of the row after the prefix.
            prefix_tokens: tokens of the prefix that all rows share.

        Raises:
            StockPathTaken: the model takes no prompt, or a forward no row, of so many tokens.
        """
        if prefix_tokens + row_tokens > self._link.longest_prompt():
            raise StockPathTaken(StockReason.PROMPT_TOO_LONG)
        if prefix_tokens + row_tokens > self._link.longest_packed:
            raise StockPathTaken(StockReason.LONG_PROMPT)
        if row_tokens > self._max_row_tokens:
            raise StockPathTaken(StockReason.ROW_OVER_BUDGET)

    async def round_trip(
        self, rows: PackedRows, options: RequestOptions, request: Any
    ) -> PackedResult:
        """Send one message and return whatever answer comes; call it while `admitted`.

        Raises:
            RequestAbortedError: the client left.
            EngineUnavailableError: the engine has gone.
        """
        self.require_open()
        rid = unique_name(ROWS_NAME)
        future: asyncio.Future[PackedResult] = asyncio.get_running_loop().create_future()
        self._pending[rid] = future
        self.tokens += len(rows.tokens)
        answer = None
        try:
            self._link.send(rid, rows, options)
            answer = await outcome_while_connected(future, request)
            return answer
        finally:
            del self._pending[rid]
            self.tokens -= len(rows.tokens)
            if answer is None and not self.closed:
                self._link.abort(rid)


@asynccontextmanager
async def _entered_by(
    deadline_ms: float, admission: AbstractAsyncContextManager[object]
) -> AsyncIterator[None]:
    """Apply a deadline to waiting for admission only; later the scheduler enforces it."""
    async with AsyncExitStack() as admitted:
        async with within(deadline_ms, "while the engine took no requests"):
            await admitted.enter_async_context(admission)
        yield


def _bad_end(answer: PackedResult) -> StockPathTaken | PrefillExtError:
    status, message = answer.status, answer.message
    if (reason := STOCK_ENDS.get(status)) is not None:
        return StockPathTaken(reason)
    if status is Status.FAILED:
        message = f"Packed forward: {message}"
    return end_with(status).error_of(message, retry_after_s=answer.retry_after_s, field="adapter")
