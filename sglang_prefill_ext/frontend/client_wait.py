"""Waiting for an answer as long as the client that wants it is there."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from sglang_prefill_ext.errors import DeadlineExceededError, RequestAbortedError

logger = logging.getLogger(__name__)

T = TypeVar("T")

# How often a waiting call looks whether its client is still there.
_DISCONNECT_POLL_S = 1.0


async def outcome_while_connected(future: asyncio.Future[T], request: Any) -> T:
    """Wait for a future that nobody else waits for.

    Args:
        request: of the client, with an `is_disconnected`; one without it, as None, cannot leave.

    Raises:
        RequestAbortedError: the client left first.
    """
    is_disconnected = getattr(request, "is_disconnected", None)
    if is_disconnected is None:
        return await future
    watches: list[asyncio.Task[None]] = []
    loop = asyncio.get_running_loop()

    def begin_to_look() -> None:
        watches.append(loop.create_task(_watch(future, is_disconnected)))

    # Most answers come before the first look, which then has cost a timer and no task.
    timer = loop.call_later(_DISCONNECT_POLL_S, begin_to_look)
    try:
        return await future
    finally:
        timer.cancel()
        for watch in watches:
            watch.cancel()


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


async def _watch(
    future: asyncio.Future[Any], is_disconnected: Callable[[], Awaitable[bool]]
) -> None:
    """Give a future an error once the client has left."""
    while not future.done():
        try:
            has_left = await is_disconnected()
        except Exception:
            logger.exception("A client cannot be watched any more; its request goes on")
            return
        if has_left and not future.done():
            left = RequestAbortedError("The client disconnected before the answer was ready.")
            future.set_exception(left)
        await asyncio.sleep(_DISCONNECT_POLL_S)
