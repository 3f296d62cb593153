"""Waiting for an answer as long as the client that wants it is there."""

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

# How often a waiting call looks whether its client is still there.
_DISCONNECT_POLL_S = 1.0


async def departure(request: Any) -> None:
    """Return once the client of a request has left whose body was read; nobody else may receive."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def outcome_while_connected(future: asyncio.Future[T], request: Any) -> T:
    """Wait for a future that nobody else waits for.

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
    """End what is inside once its client has left.

    Args:
        request: of the client, see `_watching`.

    Raises:
        RequestAbortedError: it has.
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
    """End what is inside once its deadline has passed.

    Args:
        deadline_ms: Unix time in ms; None for none.
        when: what was going on, in the words of the error.

    Raises:
        DeadlineExceededError: it has.
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
    """Look now and then whether a client is still there, and `give_up` once it has left.

    Args:
        request: with an `is_disconnected`; one without it, as None, cannot leave.
    """
    is_disconnected = getattr(request, "is_disconnected", None)
    if is_disconnected is None:
        yield
        return
    watches: list[asyncio.Task[None]] = []
    loop = asyncio.get_running_loop()

    def begin_to_look() -> None:
        watches.append(loop.create_task(_watch(is_disconnected, give_up)))

    # Most waits end before the first look, which then has cost a timer and no task.
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
            logger.exception("A client cannot be watched any more; its request goes on")
            return
        if has_left:
            give_up()
            return
        await asyncio.sleep(_DISCONNECT_POLL_S)


def _gone() -> RequestAbortedError:
    return RequestAbortedError("The client disconnected before the answer was ready.")
