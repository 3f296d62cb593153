"""In which order generations are served. Pure.

An *iteration* generates one token for each sequence of its batch. A policy keeps all sequences
that are not done in an order; `choose_batch` takes from it what the batch and the K/V pool can
hold. No policy knows how long an output will be.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol


@dataclass(slots=True, eq=False)
class Generation:
    """A sequence that is being generated.

    Attributes:
        number: place in the order of arrival.
        prompt_tokens: >= 1.
        generated: tokens so far.
        resident: whether the pool holds its K/V, of `tokens` tokens.
    """

    number: int
    prompt_tokens: int
    generated: int = 0
    resident: bool = False

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.generated


class DecodePolicy(Protocol):
    """An order of sequences that changes as they are served."""

    def add(self, each: Generation) -> None:
        """A sequence has come."""
        ...

    def order(self) -> list[Generation]:
        """Return all sequences, the one to be served first in front."""
        ...

    def served(self, batch: Sequence[Generation]) -> None:
        """These have got a token each, and all others have waited for an iteration."""
        ...

    def retracted(self, each: Generation) -> None:
        """A sequence has lost its K/V."""
        ...

    def remove(self, each: Generation) -> None:
        """A sequence is done."""
        ...


class Stock:
    """As SGLang does: first come first served to the end; who is retracted queues up anew."""

    def __init__(self) -> None:
        self._running: dict[Generation, None] = {}
        self._waiting: OrderedDict[Generation, None] = OrderedDict()

    def add(self, each: Generation) -> None:
        self._waiting[each] = None

    def order(self) -> list[Generation]:
        return [*self._running, *self._waiting]

    def served(self, batch: Sequence[Generation]) -> None:
        for each in batch:
            self._waiting.pop(each, None)
            self._running[each] = None

    def retracted(self, each: Generation) -> None:
        del self._running[each]
        self._waiting[each] = None

    def remove(self, each: Generation) -> None:
        del self._running[each]


class MultiLevel:
    """Multi-level feedback queue: those that have generated little come first.

    A sequence that has generated its level's quantum goes to the end of the next level, in the last
    one to the end of the same. One that was not served for `starved_iterations` goes to the end of
    the first level. A sequence that is preempted or retracted keeps its place.

    *Bound.* Of at most ``n`` sequences, with ``m`` slots and a pool that never fills up, none is
    passed over for more than ``starved_iterations + quanta[0] * (n - 1) / m`` iterations in a row:
    after the former it is at the end of the first level, and each of those before it there leaves
    that place after `quanta[0]` tokens, of which every iteration generates ``m``.

    Args:
        quanta: tokens by level, each >= 1.
        starved_iterations: >= 1.
    """

    def __init__(
        self, quanta: Sequence[int] = (25, 50, 100, 200, 400), starved_iterations: int = 200
    ) -> None:
        self._quanta = quanta
        self._starved_iterations = starved_iterations
        self._levels: list[dict[Generation, None]] = [{} for _ in quanta]
        self._level: dict[Generation, int] = {}
        self._left: dict[Generation, int] = {}  # of the quantum
        self._last_batch: Sequence[Generation] = ()
        self._waiting_since: OrderedDict[Generation, int] = OrderedDict()  # longest first
        self._iteration = 0

    def add(self, each: Generation) -> None:
        self._put(each, 0)
        self._waiting_since[each] = self._iteration

    def order(self) -> list[Generation]:
        return list(chain.from_iterable(self._levels))

    def served(self, batch: Sequence[Generation]) -> None:
        in_batch = set(batch)
        for each in self._last_batch:
            if each in self._level and each not in in_batch:
                self._waiting_since[each] = self._iteration
        self._last_batch = batch
        self._iteration += 1
        for each in batch:
            self._waiting_since.pop(each, None)
            self._left[each] -= 1
            if not self._left[each]:
                self._move(each, min(self._level[each] + 1, len(self._quanta) - 1))
        self._promote()

    def retracted(self, each: Generation) -> None:
        pass

    def remove(self, each: Generation) -> None:
        del self._levels[self._level.pop(each)][each]
        del self._left[each]

    def _promote(self) -> None:
        latest = self._iteration - self._starved_iterations
        while self._waiting_since and next(iter(self._waiting_since.values())) <= latest:
            each, _ = self._waiting_since.popitem(last=False)
            self._waiting_since[each] = self._iteration
            if self._level[each]:
                self._move(each, 0)

    def _move(self, each: Generation, level: int) -> None:
        del self._levels[self._level[each]][each]
        self._put(each, level)

    def _put(self, each: Generation, level: int) -> None:
        self._levels[level][each] = None
        self._level[each] = level
        self._left[each] = self._quanta[level]
