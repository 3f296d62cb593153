"""A simulated prefix cache: counts tokens and stores no K/V."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from sglang_prefill_ext.wire.arrays import Int32Array
from sglang_prefill_ext.wire.packed import PackedRows

CACHE_TOKENS = 1 << 16


class SimulatedCache:
    """Stores whole prefixes up to a total number of tokens; evicts the least recently used.

    Every prefix of a forward is stored if there is room. A prefix that a transaction holds is
    removed until the transaction ends. So it cannot be evicted. It cannot be matched either, which
    does not matter because one forward runs at a time.

    Args:
        capacity: tokens, >= 0.
    """

    def __init__(self, capacity: int = CACHE_TOKENS) -> None:
        self.capacity = self._free = capacity
        self._unused: OrderedDict[bytes, int] = OrderedDict()  # tokens; longest unused first

    shares, page_tokens = True, 1

    def cached_tokens(self, prefix: Int32Array, adapter: str = "") -> int:
        return self._unused.get(adapter.encode() + prefix.tobytes(), 0)

    def begin(self, prefix: Int32Array, adapter: str = "", *, keep: bool) -> SimulatedTransaction:
        key = adapter.encode() + prefix.tobytes()
        return SimulatedTransaction(self, key, len(prefix), self._unused.pop(key, 0))

    def begin_row(self, beginning: Int32Array, adapter: str = "") -> SimulatedTransaction:
        return self.begin(beginning, adapter, keep=True)

    def begin_private(self, num_tokens: int) -> SimulatedTransaction:
        raise NotImplementedError("every request is a plain prompt")

    def rows_seen(self, rows: PackedRows, least: int) -> None:
        """None, as no simulated row comes again."""

    def end(self, key: bytes, *, kept: int, freed: int) -> None:
        """Store again what a transaction kept, and free the rest of what it held."""
        if kept:
            self._unused[key] = kept
        self._free += freed

    def take_room(self, tokens: int) -> int:
        """Take room for `tokens` tokens and return it, or return 0 if there is too little."""
        if tokens > self._free + sum(self._unused.values()):
            return 0
        while tokens > self._free:
            self._free += self._unused.popitem(last=False)[1]
        self._free -= tokens
        return tokens


@dataclass(slots=True)
class SimulatedTransaction:
    """A forward's transaction on one prefix, which is cached whole or not at all.

    See `PrefixTransaction`.
    """

    cache: SimulatedCache
    key: bytes
    tokens: int
    cached: int
    stored: int = 0

    def reserve(self, *, whole: bool) -> bool:
        self.stored = 0 if self.cached else self.cache.take_room(self.tokens)
        return bool(self.cached or self.stored)

    @property
    def slots(self) -> range:
        """Stand-in slots: only their number has a meaning."""
        return range(self.cached + self.stored)

    def commit(self) -> None:
        self.cache.end(self.key, kept=self.cached + self.stored, freed=0)

    def rollback(self) -> None:
        self.cache.end(self.key, kept=self.cached, freed=self.stored)
