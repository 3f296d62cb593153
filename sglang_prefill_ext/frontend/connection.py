"""Waiting for an answer as long as the client that wants it is there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from sglang_prefill_ext.errors import RequestAbortedError

T = TypeVar("T")

logger = logging.getLogger(__name__)

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


async def _watch(
    future: asyncio.Future[Any], is_disconnected: Callable[[], Awaitable[bool]]
) -> None:
    """Give a future an error once the client has left; what cannot be looked for has not."""
    try:
        while not future.done():
            if await is_disconnected() and not future.done():
                left = RequestAbortedError("The client disconnected before the answer was ready.")
                future.set_exception(left)
            await asyncio.sleep(_DISCONNECT_POLL_S)
    except Exception:
        logger.exception("Prefill-only serving: a client that leaves now will not be noticed")
