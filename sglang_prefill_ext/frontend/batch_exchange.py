"""Sends items of concurrent calls in shared packed requests, and alone if a shared one fails."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

from sglang_prefill_ext.errors import PackedForwardError, PrefillExtError
from sglang_prefill_ext.frontend.answers import Served
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.gather import Gatherer
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.frontend.packed_path import PackedPath
from sglang_prefill_ext.frontend.prompt_batch import PackedGroup
from sglang_prefill_ext.frontend.worker import Worker
from sglang_prefill_ext.scheduling.budget import QueueLoad, limits_of, load_of, refusal
from sglang_prefill_ext.wire.arrays import Float32Array, int_array
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReadOut:
    """What was read for one item.

    Attributes:
        table: the item's part of `PackedGroup.tables`.
        cached_tokens: tokens of its prompt that the prefix cache had.
        queue_s, compute_s: from its arrival in the scheduler to its first forward, and from
            there to its end.
    """

    table: Float32Array
    cached_tokens: int
    queue_s: float = 0.0
    compute_s: float = 0.0


def read_outs(
    tables: Iterable[Float32Array], rows: PackedRows, answer: PackedResult
) -> list[ReadOut]:
    """What was read for each item of one packed request."""
    cached = min(answer.tokens_cached, rows.prefix_len)
    times = answer.queue_ms / 1e3, answer.compute_ms / 1e3
    return [ReadOut(table, cached, *times) for table in tables]


class _Timed(NamedTuple, Generic[Item]):
    item: Item
    deadline_ms: float | None


def _urgency(options: RequestOptions) -> int:
    """A number that is equal for deadlines with about the same time left, within a fifth of it."""
    if options.deadline_ms is None:
        return -1
    return int(4 * math.log2(max(1.0, options.deadline_ms - time.time() * 1e3)))


class BatchExchange(Generic[Item]):
    """Gathers items into batches, sends the groups of a batch, and counts what they took.

    Args:
        worker: packs large batches.
        size_of: how many tokens and numbers packing an item has to process.
        pack: divides items of a kind into groups, each item into one.
        admits: whether batches of a kind wait for their admission here; else callers are admitted.
    """

    def __init__(
        self,
        path: PackedPath,
        worker: Worker,
        *,
        size_of: Callable[[Item], int],
        pack: Callable[[Any, list[Item]], Sequence[PackedGroup]],
        admits: Callable[[Any], bool],
    ) -> None:
        self._path = path
        self._worker = worker
        self._size_of, self._pack, self._admits = size_of, pack, admits
        self._gatherer: Gatherer[_Timed[Item], ReadOut] = Gatherer(self._serve, path.config)
        # If the forward of a larger batch fails, its items are not tried again one by one: they
        # belong to one call, which fails as a whole.
        self._most_retried = 2 * path.config.gather_rows

    async def ask(
        self,
        kind: Hashable,
        options: RequestOptions,
        items: list[Item],
        request: Any,
        *,
        alone: bool = False,
    ) -> list[ReadOut]:
        """Return what was read for every item; the errors are those of `PackedExchange.ask`.

        Args:
            kind: only calls of one kind share a batch, if they also have equal options and about
                the same time left.
            request, alone: see `Gatherer.ask`.
        """
        timed = [_Timed(item, options.deadline_ms) for item in items]
        lane = kind, replace(options, deadline_ms=None), _urgency(options)
        return await self._gatherer.ask(lane, timed, request, alone=alone)

    async def _serve(
        self, lane: tuple[Hashable, RequestOptions, int], timed: list[_Timed[Item]]
    ) -> list[ReadOut | Exception]:
        """Serve a batch by the latest of the deadlines in it."""
        kind, options, _ = lane
        deadlines = [each.deadline_ms for each in timed if each.deadline_ms is not None]
        options = replace(options, deadline_ms=max(deadlines, default=None))
        async with self._path.exchange.admitted(options) if self._admits(kind) else nullcontext():
            return await self.read(kind, options, [each.item for each in timed])

    async def read(
        self, kind: Hashable, options: RequestOptions, items: list[Item]
    ) -> list[ReadOut | Exception]:
        """Return what was read for every item of an admitted batch, or why nothing was."""
        size = sum(map(self._size_of, items))
        groups = await self._worker.run_if_large(size, self._pack, kind, items)
        answers: dict[int, ReadOut | Exception] = {}
        for turn in self._turns(groups):
            asked = [self._ask_one(group, items, kind, options) for group in turn]
            # A lone call has one group, which needs no task of its own.
            found = await _all_ended(asked) if len(asked) > 1 else [await asked[0]]
            for group, outcomes in zip(turn, found, strict=True):
                answers.update(zip(group.members, outcomes, strict=True))
        return [answers[number] for number in range(len(items))]

    def _turns(self, groups: Sequence[PackedGroup]) -> Iterator[list[PackedGroup]]:
        """Divide groups so that an empty queue takes each part, or its only group, as a whole."""
        limits = limits_of(self._path.config)
        turn: list[PackedGroup] = []
        sent = QueueLoad()
        for group in groups:
            own = load_of(group.rows)
            if refusal(limits, sent, own):
                yield turn
                turn, sent = [], QueueLoad()
            turn.append(group)
            sent += own
        yield turn

    async def _ask_one(
        self, group: PackedGroup, items: list[Item], kind: Hashable, options: RequestOptions
    ) -> Sequence[ReadOut | Exception]:
        members, rows = group.members, group.rows
        if group.keep_prefix and not options.keep_prefix:
            options = replace(options, keep_prefix=True)
        try:
            answer = await self._path.exchange.ask(rows, options, None)
            self._path.metrics.record_work(rows, answer)
            return read_outs(group.tables(answer.row_values()), rows, answer)
        except PackedForwardError as error:
            if len(members) == 1 or len(items) > self._most_retried:
                return [error] * len(members)
        except (PrefillExtError, StockPathTaken) as error:
            return [error] * len(members)
        except Exception as error:  # not the callers' fault, whatever its type says
            logger.exception("A packed request could not be answered")
            failed = PackedForwardError(f"Packed request: {type(error).__name__}: {error}")
            return [failed] * len(members)
        alone = await _all_ended([self.read(kind, options, [items[each]]) for each in members])
        return [outcome for (outcome,) in alone]


async def _all_ended(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently, wait until all have ended, then raise the first error, if any.

    So none is still running when an error is raised.
    """
    outcomes = await asyncio.gather(*works, return_exceptions=True)
    found: list[T] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        found.append(outcome)
    return found


def served_prompts(
    prompt_tokens: Sequence[int], read_outs: Sequence[ReadOut], *, new_tokens: int = 0
) -> Served:
    """Counts and times of prompts that have one of `read_outs` each, in the same order."""
    cached = int_array([each.cached_tokens for each in read_outs])
    queue_s = max((each.queue_s for each in read_outs), default=0.0)
    compute_s = max((each.compute_s for each in read_outs), default=0.0)
    return Served(int_array(prompt_tokens), cached, new_tokens, queue_s, compute_s)
