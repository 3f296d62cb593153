"""A prefix cache in memory, for tests of those who use one."""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_prefill_ext.attention.prefix import HeldKV
from sglang_prefill_ext.wire.packed import Int32Array

SLOTS = 4096


class MemoryPool:
    """A pool in which nothing was ever stored: K/V of a slot are NaN until somebody writes."""

    def __init__(self) -> None:
        self._layers: dict[int, HeldKV] = {}

    def buffers(self, layer: int) -> HeldKV:
        return self._layers[layer]

    def store(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        assert slots.dtype == torch.int64
        assert len(slots) == len(k) == len(v) > 0
        if layer not in self._layers:
            keys, values = (x.new_full((SLOTS, *x.shape[1:]), torch.nan) for x in (k, v))
            self._layers[layer] = keys, values
        keys, values = self._layers[layer]
        keys[slots], values[slots] = k, v


class MemoryTransaction:
    """Insists on being ended once; `outcome` says how."""

    def __init__(self, cache: MemoryCache, prefix: tuple[int, ...]) -> None:
        self._cache, self._prefix = cache, prefix
        source, self.cached = cache.match(prefix)
        slots = [*source[: self.cached].tolist()]
        slots += [cache.take_slot() for _ in prefix[self.cached :] if cache.keeps]
        self.slots = torch.tensor(slots, dtype=torch.int64)
        self.outcome = ""

    def commit(self) -> None:
        if len(self.slots) > self.cached:
            self._cache.committed[self._prefix] = self.slots
        self._end("commit")

    def rollback(self) -> None:
        self._end("rollback")

    def _end(self, outcome: str) -> None:
        assert not self.outcome, "a transaction ends once"
        self.outcome = outcome


class MemoryCache:
    """Keeps K/V of whole prefixes; every beginning of one can be matched.

    Args:
        keeps: whether prefixes are stored.
        failing_begins: numbers (from 1) of the calls of `begin` that raise.
    """

    def __init__(self, *, keeps: bool = True, failing_begins: frozenset[int] = frozenset()) -> None:
        self.keeps = keeps
        self.committed: dict[tuple[int, ...], Tensor] = {}
        """The slots of what was committed."""
        self.begun: list[MemoryTransaction] = []
        self.keep_asked: list[bool] = []
        self.adapters: list[str] = []
        self._failing_begins = failing_begins
        self._begins = 0
        # In no order, as those of a server are after a while.
        self._slots = iter((torch.randperm(SLOTS - 1) + 1).tolist())

    @property
    def outcomes(self) -> list[str]:
        """How the transactions ended, in the order of their beginning; empty if still open."""
        return [transaction.outcome for transaction in self.begun]

    def begin(self, prefix: Int32Array, adapter: str = "", *, keep: bool) -> MemoryTransaction:
        self._begins += 1
        self.adapters.append(adapter)
        self.keep_asked.append(keep)
        if self._begins in self._failing_begins:
            raise MemoryError("no room")
        transaction = MemoryTransaction(self, tuple(prefix.tolist()))
        self.begun.append(transaction)
        return transaction

    def cached_tokens(self, prefix: Int32Array, adapter: str = "") -> int:
        return self.match(tuple(prefix.tolist()))[1]

    def take_slot(self) -> int:
        return next(self._slots)

    def match(self, prefix: tuple[int, ...]) -> tuple[Tensor, int]:
        """The slots of the committed prefix that has most in common with `prefix`, and how many
        tokens that are."""
        source, best = torch.empty(0, dtype=torch.int64), 0
        for committed, slots in self.committed.items():
            length = _common(committed, prefix)
            if length > best:
                source, best = slots, length
        return source, best


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
