"""Runs work that would stall the event loop of a front end for milliseconds in a thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from sglang_prefill_ext.errors import ServerBusyError
from sglang_prefill_ext.frontend.client_wait import outcome_while_connected, within

T = TypeVar("T")

MOST_WAITING = 4096
"""Most calls that may wait for the thread; further calls are rejected."""

_INLINE_TOKENS = 20_000
"""Calls with more prompt tokens than this are packed in the thread."""

_PACE = 0.1
"""Weight of the newest call in the moving average of the time that a call takes."""


def is_large(tokens: int) -> bool:
    """Whether a call that has to process so many tokens belongs into the thread."""
    return tokens > _INLINE_TOKENS


class Worker:
    """One thread, or a few, which run one function after the other."""

    def __init__(self, name: str, *, threads: int = 1, most_waiting: int = MOST_WAITING) -> None:
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=name)
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

        def settle(work: Future[T]) -> None:
            if not loop.is_closed():  # a server may end before the thread is done
                loop.call_soon_threadsafe(self._settle, outcome, work)

        # By `run_in_executor`, two more futures would hand the outcome on.
        self._pool.submit(job).add_done_callback(settle)
        try:
            async with within(deadline_ms, "before it was encoded and packed"):
                found: T = await outcome_while_connected(outcome, request)
        finally:
            job.drop()
        self._mean_s += _PACE * (job.seconds - self._mean_s)
        return found

    async def run_if_large(self, tokens: int, function: Callable[..., T], *args: Any) -> T:
        """Call the function here, or in the thread if it has to process many `tokens`."""
        return await self.run(function, *args) if is_large(tokens) else function(*args)

    def _settle(self, outcome: asyncio.Future[Any], work: Future[Any]) -> None:
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
    """A function call for the thread, which can be dropped before its turn."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.seconds = 0.0
        self._call: Callable[[], Any] | None = partial(function, *args)

    def __call__(self) -> Any:
        call, start = self._call, time.monotonic()
        found = None if call is None else call()
        self.seconds = time.monotonic() - start
        return found

    def drop(self) -> None:
        """Release the function and its arguments, as nothing waits for the result any more."""
        self._call = None
