"""Which generations share the next iteration. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.simulation.decode_policies import Generation


@dataclass(frozen=True, slots=True)
class Limits:
    """What an iteration and the pool can take.

    Attributes:
        max_running: sequences of a batch, >= 1.
        pool_tokens: K/V of so many tokens; no sequence ever has more.
        reserve_tokens: room that must be left for every sequence of the batch when one enters, so
            that none is retracted at once.
    """

    max_running: int
    pool_tokens: int
    reserve_tokens: int = 32


@dataclass(frozen=True, slots=True)
class Choice:
    """The next iteration.

    Attributes:
        batch: sequences that get a token, in order. Those that are not resident are computed
            first, prompt and generated tokens.
        retracted: resident sequences that lose their K/V before.
    """

    batch: list[Generation]
    retracted: list[Generation]


def choose_batch(order: Sequence[Generation], limits: Limits, *, keep: bool) -> Choice:
    """Choose from all sequences that are not done, in the order of a policy.

    None enters past another one that waits for room, but residents stay if they can.

    Args:
        keep: what a resident sequence that is not in the batch does with its K/V. If true it keeps
            it, until one before it has no room for its next token: then the last ones in order are
            retracted, as by SGLang when its pool is full. If false it is retracted at once.

    Returns:
        At least one sequence, if there is any.
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
    """The pool where only the batch is resident."""

    def __init__(self, order: Sequence[Generation], limits: Limits) -> None:
        self._residents = [each for each in order if each.resident]
        self._limits = limits
        self._used = 0

    def stays(self, each: Generation) -> bool:
        return self._takes(each.tokens + 1)

    def enters(self, each: Generation, running: int) -> bool:
        # Whoever has the pool to itself needs no reserve.
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
    """The pool where residents stay until others need their room."""

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
