"""A thread for what would stall the event loop of a front end for milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

# Calls with more prompt tokens than this are packed in the thread.
_INLINE_TOKENS = 20_000


class Worker:
    """One thread, which does one thing after the other."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Call the function in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    async def run_if_large(self, tokens: int, function: Callable[..., T], *args: Any) -> T:
        """Call the function here, unless the `tokens` that it goes through are too many."""
        return await self.run(function, *args) if tokens > _INLINE_TOKENS else function(*args)
