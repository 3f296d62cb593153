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

from sglang_prefill_ext.config import PrefillOnlyConfig
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
        try:
            path = self._tree.path_device_indices(match.last_device_node)
            self._cached_slots: Tensor = path[: self.cached].to(torch.int64)
            # Slots of the whole committed prefix; made here, so that `commit` cannot fail.
            self._path = self._allocate(commit_tokens - self.cached)
        except Exception:
            self._tree.unlock(self._lock)
            raise
        self.stored = len(self._path) - self.cached

    def load(self, layer: int) -> tuple[Tensor, Tensor]:
        keys, values = self._pool.get_kv_buffer(layer)
        return keys[self._cached_slots], values[self._cached_slots]

    def store(self, layer: int, k: Tensor, v: Tensor) -> None:
        where = KVWriteLoc(self._path[self.cached :], physical=True)
        self._pool.set_kv_buffer(None, where, k, v, layer_id_override=layer)

    def commit(self) -> None:
        try:
            if self.stored:
                self._insert()
        finally:
            self._tree.unlock(self._lock)

    def rollback(self) -> None:
        if self.stored:
            self._allocator.free(self._path[self.cached :])
        self._tree.unlock(self._lock)

    def _insert(self) -> None:
        """Give the tree the slots; should it raise, they stay its own, as it may have some."""
        key = self._key[: len(self._path)]
        # A duplicate that another request inserted meanwhile is freed by the tree.
        self._tree.insert(InsertParams(key=key, value=self._path, prev_prefix_len=self.cached))

    def _allocate(self, tokens: int) -> Tensor:
        """The cached slots and so many more, evicting what nobody uses; no more if there is no
        room."""
        if tokens <= 0:
            return self._cached_slots
        self._allocator.evict_to_free_tokens(self._tree, tokens)
        slots = self._allocator.alloc(tokens)
        if slots is None:
            return self._cached_slots
        try:
            return torch.cat([self._cached_slots, slots.to(torch.int64)])
        except Exception:
            self._allocator.free(slots)
            raise


class RadixPrefixCache:
    """Transactions on the tree that stock requests use too.

    Packed requests carry neither cache salt nor extra key, so their prefixes live where SGLang
    has those of its own requests: under the adapter's id, or without one under no name.
    """

    def __init__(self, scheduler: Any, policy: PrefixPolicy) -> None:
        self.tree = scheduler.tree_cache
        self.allocator = scheduler.token_to_kv_pool_allocator
        self.pool = scheduler.tp_worker.model_runner.token_to_kv_pool
        self._policy = policy

    def begin(self, prefix: Int32Array, adapter: str = "", *, keep: bool) -> RadixTransaction:
        commit_tokens = self._policy.tokens_to_commit(prefix, adapter, keep=keep)
        return RadixTransaction(self, _key(prefix, adapter), commit_tokens)

    def cached_tokens(self, prefix: Int32Array, adapter: str = "") -> int:
        match = self.tree.match_prefix(MatchPrefixParams(key=_key(prefix, adapter)))
        return min(int(match.device_prefix_len), len(prefix))


def prefix_cache_of(scheduler: Any, config: PrefillOnlyConfig) -> RadixPrefixCache | None:
    """The scheduler's cache; None where the packed path can neither read nor write it."""
    if not _is_plain(scheduler):
        return None
    policy = PrefixPolicy(config.prefix_caching, page_tokens=scheduler.tree_cache.page_size)
    return RadixPrefixCache(scheduler, policy)


def _key(prefix: Int32Array, adapter: str) -> RadixKey:
    return RadixKey(array("q", prefix.tolist()), extra_key=adapter or None)


def _is_plain(scheduler: Any) -> bool:
    """Whether the pool holds plain K/V in the model's precision, a token a row, on the device.

    A model that drafts has K/V of its own in the same slots, which packed forwards do not compute.
    """
    tree, runner = scheduler.tree_cache, scheduler.tp_worker.model_runner
    pool, speculation = runner.token_to_kv_pool, scheduler.spec_algorithm
    return (
        type(tree) is UnifiedRadixCache
        and not tree.disable
        and (speculation.is_none() or speculation.is_ngram())
        and not scheduler.enable_hierarchical_cache
        and type(pool) is MHATokenToKVPool
        and pool.kv_cache_layout == "nhd"
        and pool.dtype == runner.dtype
    )
