"""Policies for the order in which generations are served. Pure.

An *iteration* generates one token for each sequence of its batch. A policy keeps all unfinished
sequences in an order. `choose_batch` takes as many in this order as the batch and the K/V pool can
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
        prompt_tokens: length of the prompt, >= 1.
        generated: tokens generated so far.
        resident: whether the pool holds the K/V of its `tokens` tokens.
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
        """Add a sequence that has arrived."""
        ...

    def order(self) -> list[Generation]:
        """Return all sequences; the first is to be served first."""
        ...

    def served(self, batch: Sequence[Generation]) -> None:
        """Note that these got one token each, while all others waited for an iteration."""
        ...

    def retracted(self, each: Generation) -> None:
        """Note that a sequence has lost its K/V."""
        ...

    def remove(self, each: Generation) -> None:
        """Remove a sequence that is done."""
        ...


class Stock:
    """SGLang's order: first come, first served to the end; a retracted sequence queues up anew."""

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
    """Multi-level feedback queue: sequences that have generated few tokens come first.

    A sequence that has generated its level's quantum goes to the end of the next level, or in the
    last level to the end of the same level. A sequence that was not served for
    `starved_iterations` goes to the end of the first level. A sequence that is preempted or
    retracted keeps its place.

    *Bound.* With at most ``n`` sequences, ``m`` slots and a pool that never fills up, no sequence
    waits for more than ``starved_iterations + quanta[0] * (n - 1) / m`` iterations in a row. After
    the first term it is at the end of the first level. Each sequence before it there leaves that
    place after `quanta[0]` tokens, and every iteration generates ``m`` tokens.

    Args:
        quanta: tokens of each level's quantum, each >= 1.
        starved_iterations: iterations of waiting that send a sequence to the first level, >= 1.
    """

    def __init__(
        self, quanta: Sequence[int] = (25, 50, 100, 200, 400), starved_iterations: int = 200
    ) -> None:
        self._quanta = quanta
        self._starved_iterations = starved_iterations
        self._levels: list[dict[Generation, None]] = [{} for _ in quanta]
        self._level: dict[Generation, int] = {}
        self._left: dict[Generation, int] = {}  # tokens left of the quantum
        self._last_batch: Sequence[Generation] = ()
        self._waiting_since: OrderedDict[Generation, int] = OrderedDict()  # longest wait first
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
