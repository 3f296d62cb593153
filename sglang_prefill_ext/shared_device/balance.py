"""Load balance: choose the scheduler of a request by its load and its cached prefixes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

MAX_HOMES = 4096
"""How many prefixes are remembered; beyond that, the least recently used one is forgotten."""

Home = TypeVar("Home")


class Homes(Generic[Home]):
    """Remembers, by a key of the prefix, where each prefix was computed last."""

    def __init__(self) -> None:
        self._homes: OrderedDict[Hashable, Home] = OrderedDict()

    def get(self, key: Hashable) -> Home | None:
        return self._homes.get(key)

    def remember(self, key: Hashable, home: Home) -> None:
        self._homes[key] = home
        self._homes.move_to_end(key)
        if len(self._homes) > MAX_HOMES:
            self._homes.popitem(last=False)


class SchedulerLoads:
    """Outstanding tokens of each scheduler; takes the place of SGLang's `DPBudget`.

    Packed requests are counted exactly, from the moment they are sent until they are answered: each
    scheduler updates its answered tokens in `done`, int64 ``[schedulers]`` in shared memory. Stock
    requests count as SGLang last published them; those sent since then count with their prompts.
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

        A request whose prefix is remembered returns to that scheduler, unless more waits there than
        elsewhere by more than the prefix saves.

        Args:
            tokens: tokens of the request; its prefix counts once.
            prefix: bytes that identify the prefix; empty if nothing is cached.
            prefix_tokens: length of the prefix.
            adapter: the LoRA adapter that computes it, as each adapter has K/V of its own.
        """
        key = hash((adapter, prefix))
        home = self._homes.get(key)
        costs = self.outstanding
        if home is not None:
            costs[home] -= prefix_tokens
        rank = int(costs.argmin())
        self._sent[rank] += tokens
        if prefix:
            self._homes.remember(key, rank)
        return rank

    def dispatch(self, _method: object, estimated_tokens: int = 0) -> int:
        """Choose the scheduler of a stock request, and count it until the next published load."""
        rank = int(self.outstanding.argmin())
        self._stock[rank] += estimated_tokens
        return rank

    def update_budget(self, loads: Iterable[Any]) -> None:
        """Take over what SGLang has published of schedulers, except what was seen before."""
        for load in loads:
            if load.timestamp != self._seen_s[load.dp_rank]:
                self._seen_s[load.dp_rank] = load.timestamp
                computing = load.num_used_tokens + load.num_waiting_uncached_tokens
                self._stock[load.dp_rank] = computing
