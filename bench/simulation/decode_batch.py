"""Choose the generations that share the next iteration. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.simulation.decode_policies import Generation


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an iteration and of the K/V pool.

    Attributes:
        max_running: most sequences of a batch, >= 1.
        pool_tokens: size of the K/V pool in tokens; no sequence ever has more.
        reserve_tokens: free tokens that the pool must have for each sequence of the batch when a
            sequence enters, so that none is retracted right after.
    """

    max_running: int
    pool_tokens: int
    reserve_tokens: int = 32


@dataclass(frozen=True, slots=True)
class Choice:
    """The next iteration.

    Attributes:
        batch: sequences that get a token, in order. For those that are not resident, K/V of the
            prompt and of the generated tokens are computed first.
        retracted: resident sequences that lose their K/V before the iteration.
    """

    batch: list[Generation]
    retracted: list[Generation]


def choose_batch(order: Sequence[Generation], limits: Limits, *, keep: bool) -> Choice:
    """Choose from all unfinished sequences, given in the order of a policy.

    If a sequence waits for room, no later one enters, but residents stay if they can.

    Args:
        keep: whether a resident sequence outside of the batch keeps its K/V. If true, it keeps
            them until a sequence before it has no room for its next token. Then the last ones in
            order are retracted, as SGLang does when its pool is full. If false, it is retracted at
            once.

    Returns:
        The choice; its batch has at least one sequence if there is any.
    """
    room = _Kept(order, limits) if keep else _Freed(order, limits)
    batch: list[Generation] = []
    blocked = False
    for each in order:
        if len(batch) == limits.max_running:
            break
        if each.resident:
            fits = room.stays(each)
        else:
            fits = not blocked and room.enters(each, len(batch) + 1)
            blocked = not fits
        if fits:
            batch.append(each)
    return Choice(batch, room.retracted(batch))


class _Freed:
    """A pool in which only sequences of the batch are resident."""

    def __init__(self, order: Sequence[Generation], limits: Limits) -> None:
        self._residents = [each for each in order if each.resident]
        self._limits = limits
        self._used = 0

    def stays(self, each: Generation) -> bool:
        return self._takes(each.tokens + 1)

    def enters(self, each: Generation, running: int) -> bool:
        # A sequence that has the pool for itself needs no reserve.
        reserve = self._limits.reserve_tokens * running if self._used else 0
        return self._takes(each.tokens + 1, reserve)

    def retracted(self, batch: Sequence[Generation]) -> list[Generation]:
        staying = set(batch)
        return [each for each in self._residents if each not in staying]

    def _takes(self, tokens: int, reserve: int = 0) -> bool:
        fits = self._used + tokens + reserve <= self._limits.pool_tokens
        self._used += tokens if fits else 0
        return fits


class _Kept(_Freed):
    """A pool in which residents stay until other sequences need their room."""

    def __init__(self, order: Sequence[Generation], limits: Limits) -> None:
        super().__init__(order, limits)
        self._used = sum(each.tokens for each in self._residents)
        self._retracted: dict[Generation, None] = {}

    def stays(self, each: Generation) -> bool:
        while each not in self._retracted and not self._takes(1):
            last = self._residents.pop()
            self._retracted[last] = None
            self._used -= last.tokens
        return each not in self._retracted

    def retracted(self, batch: Sequence[Generation]) -> list[Generation]:
        return list(self._retracted)
