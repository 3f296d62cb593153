"""Asks several processes a question at once, and lets concurrent callers share an answer."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from sglang_prefill_ext.frontend.exchange import unique_name

T = TypeVar("T")


class Questions(Generic[T]):
    """Collects the answers to questions that are asked under an id."""

    def __init__(self) -> None:
        self._open: dict[str, asyncio.Queue[T]] = {}

    async def ask(self, send: Callable[[str], None], answers: int, timeout_s: float) -> list[T]:
        """Ask, and return the answers that come in time.

        Args:
            send: sends the question under the id that it is given.
            answers: how many to wait for.
        """
        rid = unique_name("question-")
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
        """Hand over an answer to the question `rid`; one that comes too late is dropped."""
        if (replies := self._open.get(rid)) is not None:
            replies.put_nowait(answer)


class Turns(Generic[T]):
    """Asks one question at a time; callers that come meanwhile share the answer to the next one.

    Every caller gets an answer that was asked for after it called. However many callers there are,
    `ask` runs once in a turn.

    Args:
        ask: returns a new answer.
        is_whole: whether an answer may stand for later ones, see `answer_within`.
    """

    def __init__(
        self, ask: Callable[[], Awaitable[T]], *, is_whole: Callable[[T], bool] = lambda _: True
    ) -> None:
        self._ask, self._is_whole = ask, is_whole
        self._last: tuple[float, T] | None = None  # the newest whole answer, and when it came
        self._current: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def answer(self) -> T:
        """Return the answer of the next turn."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._current))
        return await asyncio.shield(self._next)

    async def _after(self, current: asyncio.Task[T] | None) -> T:
        if current is not None and not current.done():
            await asyncio.wait([current])
        self._current, self._next = self._next, None
        answer = await self._ask()
        if self._is_whole(answer):
            self._last = time.monotonic(), answer
        return answer

    async def answer_within(self, wait_s: float, age_s: float) -> tuple[T | None, bool]:
        """Return the answer of the next turn if it is whole and comes in time, else the last one.

        Args:
            wait_s: seconds for which the next turn is waited for.
            age_s: seconds after which the last answer is too old.

        Returns:
            The answer, None if the last one is too old; and whether the next one is late.
        """
        try:
            async with asyncio.timeout(wait_s):
                answer = await self.answer()
                if self._is_whole(answer):
                    return answer, False
        except TimeoutError:
            pass
        came_s, last = self._last or (-math.inf, None)
        return last if time.monotonic() - came_s <= age_s else None, True
