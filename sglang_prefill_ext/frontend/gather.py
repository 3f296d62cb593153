"""Gathers small calls that come at about the same time into few large batches."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import PackedForwardError, PrefillExtError
from sglang_prefill_ext.frontend.client_wait import outcome_while_connected
from sglang_prefill_ext.frontend.exchange import StockPathTaken

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass(slots=True, eq=False)
class _Batch(Generic[Item, Answer]):
    """Items of several calls.

    Attributes:
        calls: for each call that joined, which items are its own, and the future that it awaits.
        waiting: how many of these calls still wait.
        start: the timer that starts the batch at the latest; None if there is none.
        work: the task that serves the batch; None before it has started.
    """

    items: list[Item] = field(default_factory=list)
    calls: list[tuple[slice, asyncio.Future[Sequence[Answer | Exception]]]] = field(
        default_factory=list
    )
    waiting: int = 0
    start: asyncio.TimerHandle | None = None
    work: asyncio.Task[None] | None = None

    def join(self, items: list[Item]) -> asyncio.Future[Sequence[Answer | Exception]]:
        first = len(self.items)
        self.items += items
        self.waiting += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.calls.append((slice(first, first + len(items)), future))
        return future

    def answer(self, answers: Sequence[Answer | Exception]) -> None:
        """Give every call that still waits the answers to its own items.

        Args:
            answers: one an item, in order; an exception for an item that failed.
        """
        for mine, future in self.calls:
            if not future.done():
                future.set_result(answers[mine])


@dataclass(slots=True, eq=False)
class _Lane(Generic[Item, Answer]):
    """The batches of one kind.

    Attributes:
        gathering: the batch that calls may still join; its task may exist, but has not begun.
        serving: how many batches are being served.
    """

    kind: Hashable
    gathering: _Batch[Item, Answer] | None = None
    serving: int = 0


class Gatherer(Generic[Item, Answer]):
    """Gathers the items of concurrent calls into batches.

    A batch starts at once if none of its kind is being served, so a lone call never waits; calls
    in the same turn of the event loop still join it. Otherwise it gathers until a batch of its kind
    is answered, it is large enough, or its first call has waited for long enough.

    Args:
        serve: given a kind and the items of a batch, answers every item, with an exception for an
            item that failed on its own.
        config: `gather_rows` is how many items make a batch large enough; a call with as many gets
            a batch of its own. `gather_ms` is how long the first call waits at most.
    """

    def __init__(
        self,
        serve: Callable[[Any, list[Item]], Awaitable[Sequence[Answer | Exception]]],
        config: PrefillOnlyConfig,
    ) -> None:
        self._serve = serve
        self._max_items = config.gather_rows
        self._max_wait_s = config.gather_ms / 1e3
        self._lanes: dict[Hashable, _Lane[Item, Answer]] = {}

    async def ask(
        self, kind: Hashable, items: list[Item], request: Any = None, *, alone: bool = False
    ) -> list[Answer]:
        """Return one answer an item.

        Args:
            kind: only calls of the same kind share a batch.
            request: of the client, see `outcome_while_connected`.
            alone: the call is too large to share a batch, however few its items are.

        Raises:
            RequestAbortedError: the client left. Once all calls of a batch have left, it is
                cancelled.
            Exception: whatever one of the items, or the whole batch, failed with.
        """
        lane = self._lanes.get(kind)
        if lane is None:
            lane = self._lanes[kind] = _Lane(kind)
        alone = alone or len(items) >= self._max_items
        batch = _Batch() if alone else self._gathering(lane)
        future = batch.join(items)
        if alone or len(batch.items) >= self._max_items:
            self._start(lane, batch)
            _stop_gathering(lane, batch)
        try:
            answers = await outcome_while_connected(future, request)
        finally:
            batch.waiting -= 1
            if not batch.waiting:
                _drop(lane, batch)
        mine: list[Any] = list(answers)
        for answer in mine:
            if isinstance(answer, Exception):
                raise answer if len(batch.calls) == 1 else _of_its_own(answer)
        return mine

    def _gathering(self, lane: _Lane[Item, Answer]) -> _Batch[Item, Answer]:
        if lane.gathering is None:
            batch: _Batch[Item, Answer] = _Batch()
            lane.gathering = batch
            if lane.serving:
                loop = asyncio.get_running_loop()
                batch.start = loop.call_later(self._max_wait_s, self._start, lane, batch)
            else:
                self._start(lane, batch)
        return lane.gathering

    def _start(self, lane: _Lane[Item, Answer], batch: _Batch[Item, Answer]) -> None:
        if batch.work is not None:
            return
        lane.serving += 1
        batch.work = asyncio.get_running_loop().create_task(self._work(lane, batch))
        # A callback and no `finally` in the task: one cancelled before its first step runs nothing.
        batch.work.add_done_callback(partial(self._end, lane, batch))

    async def _work(self, lane: _Lane[Item, Answer], batch: _Batch[Item, Answer]) -> None:
        _stop_gathering(lane, batch)
        answers: Sequence[Answer | Exception]
        try:
            answers = await self._serve(lane.kind, batch.items)
        except Exception as error:
            if not isinstance(error, PrefillExtError | StockPathTaken):
                logger.exception("A batch failed")
            answers = [error] * len(batch.items)
        # Before the answers are given: calls take long to process them, and the scheduler would
        # idle meanwhile.
        self._start_gathered(lane)
        batch.answer(answers)

    def _end(
        self, lane: _Lane[Item, Answer], batch: _Batch[Item, Answer], work: asyncio.Task[None]
    ) -> None:
        if not all(future.done() for _, future in batch.calls):
            # `_work` was cancelled from within, or Rust code panicked: neither is an `Exception`.
            why = "it was cancelled" if work.cancelled() else repr(work.exception())
            logger.error("A batch ended without an answer: %s", why)
            failed = PackedForwardError(f"The batch of this request ended: {why}.")
            batch.answer([failed] * len(batch.items))
        lane.serving -= 1
        self._start_gathered(lane)
        if not lane.serving:
            del self._lanes[lane.kind]

    def _start_gathered(self, lane: _Lane[Item, Answer]) -> None:
        if lane.gathering is not None:
            self._start(lane, lane.gathering)


def _of_its_own(error: Exception) -> Exception:
    """Copy an error for one of several callers, as raising one adds the caller's frames to it."""
    try:
        own = copy.copy(error)
    except Exception:  # its constructor takes other arguments than `args` has
        return error
    own.__cause__ = error
    return own


def _drop(lane: _Lane[Item, Answer], batch: _Batch[Item, Answer]) -> None:
    """End a batch for which nobody waits."""
    _stop_gathering(lane, batch)
    if batch.work is not None:
        batch.work.cancel()  # without effect on one that has ended


def _stop_gathering(lane: _Lane[Item, Answer], batch: _Batch[Item, Answer]) -> None:
    if batch.start is not None:
        batch.start.cancel()
    if lane.gathering is batch:
        lane.gathering = None
