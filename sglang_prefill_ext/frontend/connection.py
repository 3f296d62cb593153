"""Waiting for an answer as long as the client that wants it is there."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from sglang_prefill_ext.errors import RequestAbortedError

T = TypeVar("T")

# How often a waiting call looks whether its client is still there.
_DISCONNECT_POLL_S = 1.0


async def outcome_while_connected(future: asyncio.Future[T], request: Any) -> T:
    """Wait for a future, which is never cancelled by this: others may wait for it, too.

    Args:
        request: of the client, with an `is_disconnected`; one without it, as None, cannot leave.

    Raises:
        RequestAbortedError: the client left first.
    """
    is_disconnected = getattr(request, "is_disconnected", None)
    if is_disconnected is None:
        return await asyncio.shield(future)
    while not (await asyncio.wait((future,), timeout=_DISCONNECT_POLL_S))[0]:
        if await is_disconnected():
            raise RequestAbortedError("The client disconnected before the answer was ready.")
    return future.result()
