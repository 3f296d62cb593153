"""A prefix cache in memory, for tests of those who use one."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from sglang_prefill_ext.wire.packed import Int32Array

Layers: TypeAlias = dict[int, tuple[Tensor, Tensor]]


class MemoryTransaction:
    """Insists on being ended once; `outcome` says how."""

    def __init__(self, cache: MemoryCache, prefix: tuple[int, ...]) -> None:
        self._cache, self._prefix = cache, prefix
        self._source, self.cached = cache.match(prefix)
        self.stored = len(prefix) - self.cached if cache.keeps else 0
        self.layers: Layers = {}
        self.outcome = ""

    def load(self, layer: int) -> tuple[Tensor, Tensor]:
        assert not self.outcome
        k, v = self._cache.committed[self._source][layer]
        return k[: self.cached], v[: self.cached]

    def store(self, layer: int, k: Tensor, v: Tensor) -> None:
        assert not self.outcome
        assert len(k) == len(v) == self.stored > 0
        self.layers[layer] = k.clone(), v.clone()

    def commit(self) -> None:
        if self.stored:
            self._cache.committed[self._prefix] = {
                layer: self._behind_cached(layer, k, v) for layer, (k, v) in self.layers.items()
            }
        self._end("commit")

    def rollback(self) -> None:
        self._end("rollback")

    def _behind_cached(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if not self.cached:
            return k, v
        before_k, before_v = self.load(layer)
        return torch.cat((before_k, k)), torch.cat((before_v, v))

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
        self.committed: dict[tuple[int, ...], Layers] = {}
        self.begun: list[MemoryTransaction] = []
        self.keep_asked: list[bool] = []
        self.adapters: list[str] = []
        self._failing_begins = failing_begins
        self._begins = 0

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

    def match(self, prefix: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """The committed prefix that has most in common with `prefix`, and how many tokens."""
        source: tuple[int, ...] = ()
        best = 0
        for committed in self.committed:
            length = _common(committed, prefix)
            if length > best:
                source, best = committed, length
        return source, best


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
