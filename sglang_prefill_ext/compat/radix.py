"""SGLang's radix cache and KV pool behind the packed path's `PrefixCache`."""

from __future__ import annotations

from array import array
from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.memory_pool import KVWriteLoc, MHATokenToKVPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from torch import Tensor

from sglang_prefill_ext.oneshot.prefix_policy import PrefixPolicy
from sglang_prefill_ext.wire.packed import Int32Array


class RadixTransaction:
    """Locks the matched path of the tree, and owns the slots for what is stored behind it."""

    def __init__(self, cache: RadixPrefixCache, key: RadixKey, commit_tokens: int) -> None:
        self._tree, self._allocator, self._pool = cache.tree, cache.allocator, cache.pool
        self._key = key
        match = self._tree.match_prefix(MatchPrefixParams(key=key))
        self.cached = min(int(match.device_prefix_len), len(key))
        self._lock = self._tree.lock(match.last_device_node)
        path = self._tree.path_device_indices(match.last_device_node)
        self._cached_slots = path[: self.cached].to(torch.int64)
        self._slots = self._allocate(commit_tokens - self.cached)
        self.stored = 0 if self._slots is None else len(self._slots)

    def load(self, layer: int) -> tuple[Tensor, Tensor]:
        keys, values = self._pool.get_kv_buffer(layer)
        return keys[self._cached_slots], values[self._cached_slots]

    def store(self, layer: int, k: Tensor, v: Tensor) -> None:
        where = KVWriteLoc(self._slots, physical=True)
        self._pool.set_kv_buffer(None, where, k, v, layer_id_override=layer)

    def commit(self) -> None:
        if self._slots is not None:
            tokens = self._key.token_ids[: self.cached + self.stored]
            value = torch.cat([self._cached_slots, self._slots])
            # A duplicate that another request inserted meanwhile is freed by the tree.
            self._tree.insert(
                InsertParams(key=RadixKey(tokens), value=value, prev_prefix_len=self.cached)
            )
            self._slots = None
        self._tree.unlock(self._lock)

    def rollback(self) -> None:
        if self._slots is not None:
            self._allocator.free(self._slots)
            self._slots = None
        self._tree.unlock(self._lock)

    def _allocate(self, tokens: int) -> Tensor | None:
        """Slots for so many tokens, evicting what nobody uses; None if there is no room."""
        if tokens <= 0:
            return None
        self._allocator.evict_to_free_tokens(self._tree, tokens)
        slots: Tensor | None = self._allocator.alloc(tokens)
        return None if slots is None else slots.to(torch.int64, copy=True)


class RadixPrefixCache:
    """Transactions on the tree that stock requests use too.

    Scoring requests carry neither LoRA nor cache salt nor extra key, so their prefixes live in
    the tree's unnamed namespace, as those of stock scoring requests do.
    """

    def __init__(self, scheduler: Any, policy: PrefixPolicy) -> None:
        self.tree = scheduler.tree_cache
        self.allocator = scheduler.token_to_kv_pool_allocator
        self.pool = scheduler.tp_worker.model_runner.token_to_kv_pool
        self._policy = policy

    def begin(self, prefix: Int32Array) -> RadixTransaction:
        key = RadixKey(array("q", prefix.tolist()))
        return RadixTransaction(self, key, self._policy.tokens_to_commit(prefix))


def supports_prefix_cache(scheduler: Any) -> bool:
    """Whether K/V of the packed path and of the KV pool are interchangeable here."""
    tree = scheduler.tree_cache
    pool = scheduler.tp_worker.model_runner.token_to_kv_pool
    return (
        type(tree) is UnifiedRadixCache
        and not tree.disable
        and type(pool) is MHATokenToKVPool
        and pool.dtype == scheduler.tp_worker.model_runner.dtype
        and not scheduler.enable_hierarchical_cache
        and not scheduler.tree_cache.is_eagle
    )
