"""A prefix cache in memory, for tests of code that uses one."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sglang_prefill_ext.attention.inputs import HeldKV
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.wire.arrays import Int32Array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.prefix_policy import RowMemory

SLOTS = 8192


class MemoryPool:
    """A pool in which K/V of a slot are NaN until they are written."""

    def __init__(self, *, keeps_latents: bool = False) -> None:
        self.keeps_latents = keeps_latents
        self._layers: dict[int, HeldKV] = {}

    def set_aside(self, budget: ForwardBudget) -> ForwardBudget:
        return budget

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
    """Must be ended exactly once; `outcome` says how."""

    def __init__(self, cache: MemoryCache, prefix: tuple[int, ...], *, private: bool) -> None:
        self._cache, self._prefix, self._private = cache, prefix, private
        source, self.cached = cache.match(() if private else prefix)
        self.slots = source[: self.cached]
        self.whole = False
        self.outcome = ""

    def reserve(self, *, whole: bool) -> bool:
        assert not self.outcome
        self.whole = whole
        missing = len(self._prefix) - self.cached
        if whole or (self._cache.keeps and not self._private):
            slots = self._cache.take(missing)
            if slots is None:
                return False
            self.slots = torch.cat([self.slots, slots])
        return True

    def commit(self) -> None:
        if self._cache.keeps and not self._private and len(self.slots) > self.cached:
            self._cache.commit(self._prefix, self.slots)
            self._end("commit", kept=len(self.slots))
        else:
            self._end("commit", kept=self.cached)

    def rollback(self) -> None:
        self._end("rollback", kept=self.cached)

    def _end(self, outcome: str, kept: int) -> None:
        assert not self.outcome, "a transaction ends once"
        self._cache.free += self.slots[kept:].tolist()
        self.outcome = outcome


def _key(prefix: Int32Array, adapter: str) -> tuple[int, ...]:
    """A prefix by which K/V are kept: tokens of each adapter are others."""
    return tuple((prefix.astype(np.int64) + 1000 * sum(adapter.encode())).tolist())


class MemoryCache:
    """Keeps K/V of whole prefixes; every beginning of one can be matched.

    Args:
        keeps: whether prefixes are stored.
        failing_begins: numbers (from 1) of the calls of `begin` that raise.
        failing_looks: the same for calls of `cached_tokens`.
        capacity: slots.
        device: where slots are named.

    Attributes:
        free: slots that are neither cached nor reserved.
    """

    shares, page_tokens = True, 1

    def __init__(
        self,
        *,
        keeps: bool = True,
        failing_begins: frozenset[int] = frozenset(),
        failing_looks: frozenset[int] = frozenset(),
        capacity: int = SLOTS - 1,
        device: torch.device | None = None,
    ) -> None:
        self.keeps = keeps
        self.capacity = capacity
        self._no_slots = torch.empty(0, dtype=torch.int64, device=device)
        self.committed: dict[tuple[int, ...], Tensor] = {}
        """The slots of what was committed."""
        self.begun: list[MemoryTransaction] = []
        self.keep_asked: list[bool] = []
        self.adapters: list[str] = []
        self.memory = RowMemory(capacity)
        self._failing_begins, self._failing_looks = failing_begins, failing_looks
        self._begins = self._looks = 0
        # Shuffled, as the free slots of a server are after a while.
        self.free: list[int] = (torch.randperm(SLOTS - 1) + 1)[:capacity].tolist()

    @property
    def outcomes(self) -> list[str]:
        """How the transactions ended, in the order of their beginning; empty if still open."""
        return [transaction.outcome for transaction in self.begun]

    def begin(self, prefix: Int32Array, adapter: str = "", *, keep: bool) -> MemoryTransaction:
        self.adapters.append(adapter)
        self.keep_asked.append(keep)
        assert len(prefix), "there is nothing to match"
        return self._begin(_key(prefix, adapter), private=False)

    def begin_row(self, beginning: Int32Array, adapter: str = "") -> MemoryTransaction:
        return self.begin(beginning, adapter, keep=True)

    def begin_private(self, num_tokens: int) -> MemoryTransaction:
        return self._begin((-1,) * num_tokens, private=True)

    def cached_tokens(self, prefix: Int32Array, adapter: str = "") -> int:
        self._looks += 1
        if self._looks in self._failing_looks:
            raise MemoryError("no room")
        return self.match(_key(prefix, adapter))[1]

    def rows_seen(self, rows: PackedRows, least: int) -> NDArray[np.int64] | None:
        return self.memory.tokens_seen(rows, least)

    def take(self, num_tokens: int) -> Tensor | None:
        if num_tokens > len(self.free):
            return None
        return self._no_slots.new_tensor([self.free.pop() for _ in range(num_tokens)])

    def commit(self, prefix: tuple[int, ...], slots: Tensor) -> None:
        """If the same tokens were committed meanwhile, the later slots are freed."""
        source, shared = self.match(prefix)
        self.free += [slot for slot in slots[:shared].tolist() if slot not in source.tolist()]
        self.committed[prefix] = torch.cat([source[:shared], slots[shared:]])

    def check_idle(self) -> None:
        """Assert that every transaction has ended, and that every slot is free or committed."""
        assert "" not in self.outcomes
        committed = [slot for slots in self.committed.values() for slot in slots.tolist()]
        assert len({*self.free, *committed}) == self.capacity
        assert not {*self.free} & {*committed}

    def match(self, prefix: tuple[int, ...]) -> tuple[Tensor, int]:
        """The slots of the committed prefix that has most in common with `prefix`, and how many
        tokens that are."""
        source, best = self._no_slots, 0
        for committed, slots in self.committed.items():
            length = _common(committed, prefix)
            if length > best:
                source, best = slots, length
        return source, best

    def _begin(self, prefix: tuple[int, ...], *, private: bool) -> MemoryTransaction:
        self._begins += 1
        if self._begins in self._failing_begins:
            raise MemoryError("no room")
        transaction = MemoryTransaction(self, prefix, private=private)
        self.begun.append(transaction)
        return transaction


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
