"""Many small calls that come at about the same time, served as few large ones."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from sglang_prefill_ext.frontend.connection import outcome_while_connected

Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass(slots=True, eq=False)
class _Batch(Generic[Item, Answer]):
    """Items of several calls.

    Attributes:
        answers: one an item, in order; its own failure where it has one.
        callers: calls that still wait for the batch.
        start: when the batch is started at the latest; None where it does not gather.
        work: serves the batch; None before it has started.
    """

    answers: asyncio.Future[Sequence[Answer | Exception]]
    items: list[Item] = field(default_factory=list)
    callers: int = 0
    start: asyncio.TimerHandle | None = None
    work: asyncio.Task[Sequence[Answer | Exception]] | None = None


class Gatherer(Generic[Item, Answer]):
    """Gathers the items of concurrent calls into batches.

    A batch starts at once where none of its kind is being served, so a lone call never waits.
    Otherwise it gathers until the one before it is answered, it is large enough, or its first
    call has waited for long enough.

    Args:
        serve: given a kind and the items of a batch, answers every item, with an exception in
            the place of one that failed on its own.
        max_items: of a batch; a call with so many gets a batch for itself.
        max_wait_s: see above.
    """

    def __init__(
        self,
        serve: Callable[[Any, list[Item]], Awaitable[Sequence[Answer | Exception]]],
        *,
        max_items: int,
        max_wait_s: float,
    ) -> None:
        self._serve = serve
        self._max_items = max_items
        self._max_wait_s = max_wait_s
        self._gathering: dict[Hashable, _Batch[Item, Answer]] = {}
        self._serving: Counter[Hashable] = Counter()

    async def ask(self, kind: Hashable, items: list[Item], request: Any = None) -> list[Answer]:
        """Return one answer an item.

        Args:
            kind: only calls of the same kind share a batch.
            request: of the client, see `outcome_while_connected`.

        Raises:
            RequestAbortedError: the client left. The batch ends with its last call.
            Exception: whatever an item failed with, or the whole batch.
        """
        batch = self._batch_for(kind, len(items))
        first = len(batch.items)
        batch.items += items
        batch.callers += 1
        if len(batch.items) >= self._max_items:
            self._start(kind, batch)
        try:
            answers = await outcome_while_connected(batch.answers, request)
        finally:
            batch.callers -= 1
            if not batch.callers:
                self._leave(kind, batch)
        mine: list[Any] = list(answers[first : first + len(items)])
        for answer in mine:
            if isinstance(answer, Exception):
                raise answer
        return mine

    def _batch_for(self, kind: Hashable, size: int) -> _Batch[Item, Answer]:
        loop = asyncio.get_running_loop()
        if size >= self._max_items:
            return _Batch(loop.create_future())
        batch = self._gathering.get(kind)
        if batch is None:
            batch = self._gathering[kind] = _Batch(loop.create_future())
            wait_s = self._max_wait_s if self._serving[kind] else 0.0
            batch.start = loop.call_later(wait_s, self._start, kind, batch)
        return batch

    def _start(self, kind: Hashable, batch: _Batch[Item, Answer]) -> None:
        self._stop_gathering(kind, batch)
        self._serving[kind] += 1
        batch.work = asyncio.get_running_loop().create_task(self._work(kind, batch))
        # Not within it: a task that is cancelled before its first step runs nothing at all.
        batch.work.add_done_callback(partial(self._end, kind, batch))

    async def _work(
        self, kind: Hashable, batch: _Batch[Item, Answer]
    ) -> Sequence[Answer | Exception]:
        try:
            return await self._serve(kind, batch.items)
        except Exception as error:
            return [error] * len(batch.items)

    def _end(
        self,
        kind: Hashable,
        batch: _Batch[Item, Answer],
        work: asyncio.Task[Sequence[Answer | Exception]],
    ) -> None:
        self._serving[kind] -= 1
        if not self._serving[kind]:
            del self._serving[kind]
        waiting = self._gathering.get(kind)
        if waiting is not None:
            self._start(kind, waiting)
        if not work.cancelled():
            batch.answers.set_result(work.result())

    def _leave(self, kind: Hashable, batch: _Batch[Item, Answer]) -> None:
        """Drop a batch for which nobody waits."""
        if batch.work is None:
            self._stop_gathering(kind, batch)
        else:
            batch.work.cancel()  # without effect on one that has ended

    def _stop_gathering(self, kind: Hashable, batch: _Batch[Item, Answer]) -> None:
        if batch.start is not None:
            batch.start.cancel()
        if self._gathering.get(kind) is batch:
            del self._gathering[kind]
