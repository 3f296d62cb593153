"""Questions to several processes at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from sglang_prefill_ext.frontend.names import unique_name

T = TypeVar("T")


class RollCall(Generic[T]):
    """Collects the answers to questions that are asked under an id."""

    def __init__(self) -> None:
        self._open: dict[str, asyncio.Queue[T]] = {}

    async def ask(self, send: Callable[[str], None], answers: int, timeout_s: float) -> list[T]:
        """Ask, and return what was answered; the silent are left out.

        Args:
            send: sends the question under the id that it is given.
            answers: how many to wait for.
        """
        rid = unique_name("roll-call-")
        replies: asyncio.Queue[T] = asyncio.Queue()
        self._open[rid] = replies
        found: list[T] = []
        try:
            send(rid)
            async with asyncio.timeout(timeout_s):
                while len(found) < answers:
                    found.append(await replies.get())
        except TimeoutError:
            pass
        finally:
            del self._open[rid]
        return found

    def deliver(self, rid: str, answer: T) -> None:
        """Hand an answer to whoever asked; one that comes too late is dropped."""
        if (replies := self._open.get(rid)) is not None:
            replies.put_nowait(answer)
