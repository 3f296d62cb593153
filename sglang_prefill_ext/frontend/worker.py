"""What would stall the event loop of a front end for milliseconds: in a thread, and in parts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import msgspec
from numpy.typing import NDArray

from sglang_prefill_ext.errors import ServerBusyError
from sglang_prefill_ext.frontend.client_wait import outcome_while_connected, within

T = TypeVar("T")

MOST_WAITING = 4096
"""Calls that may wait for the thread; beyond, a call is rejected."""

_INLINE_TOKENS = 20_000
"""Calls with more prompt tokens than this are packed in the thread."""

_PACE = 0.1
"""Weight of the newest call in the mean time that one takes."""

_AT_A_TIME = 1 << 16
"""Values that become objects in one step, during which no other thread runs."""

ROWS_AT_A_TIME = 16
"""Rows of an answer, of up to as many numbers as the vocabulary is large."""

_ENCODER = msgspec.json.Encoder()


def is_large(tokens: int) -> bool:
    """Whether a call that goes through so many tokens is one for the thread."""
    return tokens > _INLINE_TOKENS


class Worker:
    """One thread, which does one thing after the other."""

    def __init__(self, name: str, *, most_waiting: int = MOST_WAITING) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._most_waiting = most_waiting
        self._waiting = 0
        self._mean_s = 0.0

    async def run(
        self,
        function: Callable[..., T],
        *args: Any,
        request: Any = None,
        deadline_ms: float | None = None,
    ) -> T:
        """Call the function in the thread, unless its caller has left before its turn.

        Args:
            request: of the client, see `outcome_while_connected`.
            deadline_ms: see `within`.

        Raises:
            ServerBusyError: too many calls wait for the thread already.
            RequestAbortedError: the client left.
            DeadlineExceededError: the deadline passed.
        """
        if self._waiting >= self._most_waiting:
            raise self._busy()
        loop = asyncio.get_running_loop()
        job, outcome = _Job(function, args), loop.create_future()
        self._waiting += 1
        work = loop.run_in_executor(self._pool, job)
        work.add_done_callback(partial(self._settle, outcome))
        try:
            async with within(deadline_ms, "before it was encoded and packed"):
                found: T = await outcome_while_connected(outcome, request)
        finally:
            job.drop()
        self._mean_s += _PACE * (job.seconds - self._mean_s)
        return found

    async def run_if_large(self, tokens: int, function: Callable[..., T], *args: Any) -> T:
        """Call the function here, unless the `tokens` that it goes through are too many."""
        return await self.run(function, *args) if is_large(tokens) else function(*args)

    def _settle(self, outcome: asyncio.Future[Any], work: asyncio.Future[Any]) -> None:
        self._waiting -= 1
        error = work.exception()
        if outcome.done():
            return
        if error is None:
            outcome.set_result(work.result())
        else:
            outcome.set_exception(error)

    def _busy(self) -> ServerBusyError:
        error = ServerBusyError(
            f"The server is busy: {self._waiting} calls wait to be encoded or packed, the limit is "
            f"{self._most_waiting}. Try again later."
        )
        error.retry_after_s = self._waiting * self._mean_s
        return error


class _Job:
    """What the thread is to do, as long as somebody wants it."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.seconds = 0.0
        self._call: Callable[[], Any] | None = partial(function, *args)

    def __call__(self) -> Any:
        call, start = self._call, time.monotonic()
        found = None if call is None else call()
        self.seconds = time.monotonic() - start
        return found

    def drop(self) -> None:
        """Let go of what it holds; nobody waits any more."""
        self._call = None


def table_rows(table: NDArray[Any]) -> list[list[Any]]:
    """Return a table ``[rows, columns]`` as one list a row, some rows at a time."""
    step = max(1, _AT_A_TIME // max(1, table.shape[1]))
    if step >= len(table):
        rows: list[list[Any]] = table.tolist()
        return rows
    return [row for a in range(0, len(table), step) for row in table[a : a + step].tolist()]


def in_parts(rows: Sequence[Any], at_a_time: int = ROWS_AT_A_TIME) -> Any:
    """Many rows as JSON, for an encoder of `msgspec` to put in their place; few as they are.

    They are made some at a time, so that other threads run between.
    """
    if len(rows) <= at_a_time:
        return rows
    parts = (rows[start : start + at_a_time] for start in range(0, len(rows), at_a_time))
    return msgspec.Raw(b"[%s]" % b",".join(_ENCODER.encode(part)[1:-1] for part in parts))
