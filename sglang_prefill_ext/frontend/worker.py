"""Waits for a scheduler, or for a thread, as long as the client is connected.

Work that would stall the event loop of a front end for milliseconds is done in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeVar

from sglang_prefill_ext.errors import DeadlineExceededError, RequestAbortedError, ServerBusyError

logger = logging.getLogger(__name__)

T = TypeVar("T")

MOST_WAITING = 4096
"""Most calls that may wait for the thread; further calls are rejected."""

_DISCONNECT_POLL_S = 1.0
"""Time between two checks whether the client of a waiting call is still connected."""

_INLINE_TOKENS = 20_000
"""Calls with more prompt tokens than this are packed in the thread."""

_PACE = 0.1
"""Weight of the newest call in the moving average of the time that a call takes."""


@asynccontextmanager
async def until_departure(request: Any) -> AsyncIterator[None]:
    """Cancel the body of the `with` statement when the client has disconnected, and go on.

    The body of the request must have been read already, and nothing else may call `receive`
    meanwhile.
    """

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        inside.reschedule(0.0)

    try:
        async with asyncio.timeout(None) as inside:
            watching = asyncio.ensure_future(watch())
            try:
                yield
            finally:
                watching.cancel()
    except TimeoutError:
        if not inside.expired():
            raise


async def outcome_while_connected(future: asyncio.Future[T], request: Any) -> T:
    """Wait for a future while the client is connected; nothing else may wait for it.

    Args:
        request: of the client, see `_watching`.

    Raises:
        RequestAbortedError: the client left first.
    """

    def give_up() -> None:
        if not future.done():
            future.set_exception(_gone())

    with _watching(request, give_up):
        return await future


@asynccontextmanager
async def while_connected(request: Any) -> AsyncIterator[None]:
    """Cancel the body of the `with` statement once the client has left.

    Args:
        request: of the client, see `_watching`.

    Raises:
        RequestAbortedError: the client has left.
    """
    try:
        async with asyncio.timeout(None) as inside:
            with _watching(request, partial(inside.reschedule, 0.0)):
                yield
    except TimeoutError as error:
        if not inside.expired():
            raise
        raise _gone() from error


@asynccontextmanager
async def within(deadline_ms: float | None, when: str) -> AsyncIterator[None]:
    """Cancel the body of the `with` statement once the deadline has passed.

    Args:
        deadline_ms: Unix time in ms; None for no deadline.
        when: what was going on, as the message of the error says it.

    Raises:
        DeadlineExceededError: the deadline has passed.
    """
    if deadline_ms is None:
        yield
        return
    try:
        async with asyncio.timeout(deadline_ms / 1e3 - time.time()):
            yield
    except TimeoutError as error:
        raise DeadlineExceededError(f"The deadline of the request passed {when}.") from error


@contextmanager
def _watching(request: Any, give_up: Callable[[], object]) -> Iterator[None]:
    """Check regularly whether the client is still connected, and call `give_up` once it has left.

    Args:
        request: has `is_disconnected`; one without it, such as None, is not watched.
    """
    is_disconnected = getattr(request, "is_disconnected", None)
    if is_disconnected is None:
        yield
        return
    watches: list[asyncio.Task[None]] = []
    loop = asyncio.get_running_loop()

    def begin_to_look() -> None:
        watches.append(loop.create_task(_watch(is_disconnected, give_up)))

    # Most waits end before the first check, and so cost a timer, but no task.
    timer = loop.call_later(_DISCONNECT_POLL_S, begin_to_look)
    try:
        yield
    finally:
        timer.cancel()
        for watch in watches:
            watch.cancel()


async def _watch(
    is_disconnected: Callable[[], Awaitable[bool]], give_up: Callable[[], object]
) -> None:
    while True:
        try:
            has_left = await is_disconnected()
        except Exception:
            logger.exception("A client's connection cannot be checked; its request goes on")
            return
        if has_left:
            give_up()
            return
        await asyncio.sleep(_DISCONNECT_POLL_S)


def _gone() -> RequestAbortedError:
    return RequestAbortedError("The client disconnected before the answer was ready.")


def is_large(tokens: int) -> bool:
    """Whether a call that has to process so many tokens belongs into the thread."""
    return tokens > _INLINE_TOKENS


class Worker:
    """One thread, which runs one function after the other."""

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
        """Call the function here, or in the thread if it has to process many `tokens`."""
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
