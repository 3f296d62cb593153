"""A prefix cache that keeps account and computes nothing."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from sglang_prefill_ext.wire.packed import Int32Array

CACHE_TOKENS = 1 << 16


class SimulatedCache:
    """Keeps whole prefixes up to so many tokens in all; evicts the longest unused.

    Every prefix that is begun is stored, if there is room. What a transaction holds is taken out
    until it ends, so it can neither be evicted nor, which is no loss as one forward runs at a
    time, be matched.

    Args:
        capacity: tokens, >= 0.
    """

    def __init__(self, capacity: int = CACHE_TOKENS) -> None:
        self._free = capacity
        self._unused: OrderedDict[bytes, int] = OrderedDict()  # tokens; longest unused first

    def cached_tokens(self, prefix: Int32Array, adapter: str = "") -> int:
        return self._unused.get(adapter.encode() + prefix.tobytes(), 0)

    def begin(self, prefix: Int32Array, adapter: str = "", *, keep: bool) -> SimulatedTransaction:
        key = adapter.encode() + prefix.tobytes()
        cached = self._unused.pop(key, 0)
        stored = 0 if cached else self._take_room(len(prefix))
        return SimulatedTransaction(self, key, cached, stored)

    def end(self, key: bytes, *, kept: int, freed: int) -> None:
        """Take back what a transaction held."""
        if kept:
            self._unused[key] = kept
        self._free += freed

    def _take_room(self, tokens: int) -> int:
        if tokens > self._free + sum(self._unused.values()):
            return 0
        while tokens > self._free:
            self._free += self._unused.popitem(last=False)[1]
        self._free -= tokens
        return tokens


@dataclass(slots=True)
class SimulatedTransaction:
    """One forward's hold on a prefix, cached whole or not at all; see `PrefixTransaction`."""

    cache: SimulatedCache
    key: bytes
    cached: int
    stored: int

    @property
    def slots(self) -> range:
        """As many as there would be."""
        return range(self.cached + self.stored)

    def commit(self) -> None:
        self.cache.end(self.key, kept=self.cached + self.stored, freed=0)

    def rollback(self) -> None:
        self.cache.end(self.key, kept=self.cached, freed=self.stored)
