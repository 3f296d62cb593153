"""Where a prefix is cached, when a request returns to it, and which scheduler gets it.

One rule for all who balance.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

MAX_HOMES = 4096
"""Prefixes whose home is remembered; the longest unused is forgotten."""

Number = TypeVar("Number", np.int64, np.float64)
Home = TypeVar("Home")


def soonest(waiting: NDArray[Number], saved: NDArray[Number]) -> int:
    """Return where a request is done first; of equals the first.

    Who has its prefix takes it, unless what waits there beyond the least costs more than the
    prefix saves.

    Args:
        waiting: what has to be computed before it, in any unit of cost; ``[places]``.
        saved: what each place need not compute as it has the prefix; ``[places]``.
    """
    return int((waiting - saved).argmin())


class Homes(Generic[Home]):
    """Remembers by a key of the prefix where it was computed last."""

    def __init__(self) -> None:
        self._homes: OrderedDict[Hashable, Home] = OrderedDict()

    def get(self, key: Hashable) -> Home | None:
        return self._homes.get(key)

    def remember(self, key: Hashable, home: Home) -> None:
        self._homes[key] = home
        self._homes.move_to_end(key)
        if len(self._homes) > MAX_HOMES:
            self._homes.popitem(last=False)


class StockLoad(Protocol):
    """What SGLang publishes of a scheduler's own requests."""

    timestamp: float
    dp_rank: int
    num_used_tokens: int
    num_waiting_uncached_tokens: int


class SchedulerLoads:
    """Outstanding tokens of each scheduler.

    Packed requests are counted exactly: from the moment they are sent until they are answered.
    Requests of SGLang's own count as SGLang last published them, and those sent since then with
    their prompts. Takes the place of SGLang's `DPBudget`.

    Args:
        done: int64 ``[schedulers]``, live: tokens of the packed requests that were answered.
    """

    def __init__(self, done: NDArray[np.int64]) -> None:
        self._done = done
        self._sent = np.zeros_like(done)
        self._stock = np.zeros_like(done)
        self._seen_s = [0.0] * len(done)
        self._homes: Homes[int] = Homes()

    @property
    def outstanding(self) -> NDArray[np.int64]:
        """int64 ``[schedulers]``: tokens that are not computed yet."""
        return self._sent - self._done + self._stock

    def place(
        self, tokens: int, prefix: bytes = b"", prefix_tokens: int = 0, *, adapter: str = ""
    ) -> int:
        """Choose the scheduler of a packed request and count it there.

        A request whose prefix is remembered returns to it where that is `soonest`.

        Args:
            tokens: of the request, its prefix once.
            prefix: what to remember the prefix by; empty where nothing is cached.
            prefix_tokens: how long it is.
            adapter: with which it is computed, as each adapter has K/V of its own.
        """
        key = hash((adapter, prefix))
        home = self._homes.get(key) if prefix else None
        saved = np.zeros_like(self._sent)
        if home is not None:
            saved[home] = prefix_tokens
        rank = soonest(self.outstanding, saved)
        self._sent[rank] += tokens
        if prefix:
            self._homes.remember(key, rank)
        return rank

    def dispatch(self, _method: object, estimated_tokens: int = 0) -> int:
        """Choose the scheduler of a request of SGLang's own and count it until the next load."""
        rank = int(self.outstanding.argmin())
        self._stock[rank] += estimated_tokens
        return rank

    def update_budget(self, loads: Iterable[StockLoad]) -> None:
        """Take over what schedulers have published, unless it is what was seen before."""
        for load in loads:
            if load.timestamp != self._seen_s[load.dp_rank]:
                self._seen_s[load.dp_rank] = load.timestamp
                computing = load.num_used_tokens + load.num_waiting_uncached_tokens
                self._stock[load.dp_rank] = computing
