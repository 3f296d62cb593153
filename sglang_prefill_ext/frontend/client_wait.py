"""Waits as long as the client is connected, and no longer than its deadline."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeVar

from sglang_prefill_ext.errors import DeadlineExceededError, RequestAbortedError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_DISCONNECT_POLL_S = 1.0
"""Time between two checks whether the client of a waiting call is still connected."""


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
