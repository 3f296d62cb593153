"""SGLang's radix cache and KV pool behind the packed path's `PrefixCache`."""

from __future__ import annotations

from array import array
from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from torch import Tensor

from sglang_prefill_ext.compat.kv_pool import plain_pool
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.oneshot.prefix_policy import PrefixPolicy
from sglang_prefill_ext.wire.packed import Int32Array


class RadixTransaction:
    """Locks the matched path of the tree, and owns the slots for what is stored behind it."""

    def __init__(self, cache: RadixPrefixCache, key: RadixKey, commit_tokens: int) -> None:
        self._tree, self._allocator = cache.tree, cache.allocator
        self._key = key
        match = self._tree.match_prefix(MatchPrefixParams(key=key))
        self.cached = min(int(match.device_prefix_len), len(key))
        self._lock = self._tree.lock(match.last_device_node)
        try:
            path = self._tree.path_device_indices(match.last_device_node)
            cached_slots = path[: self.cached].to(torch.int64)
            # All slots of the committed prefix; made here, so that `commit` cannot fail.
            self.slots = self._with_new(cached_slots, commit_tokens - self.cached)
        except Exception:
            self._tree.unlock(self._lock)
            raise

    def commit(self) -> None:
        try:
            if len(self.slots) > self.cached:
                self._insert()
        finally:
            self._tree.unlock(self._lock)

    def rollback(self) -> None:
        if len(self.slots) > self.cached:
            self._allocator.free(self.slots[self.cached :])
        self._tree.unlock(self._lock)

    def _insert(self) -> None:
        """Give the tree the slots; should it raise, they stay its own, as it may have some."""
        key = self._key[: len(self.slots)]
        # A duplicate that another request inserted meanwhile is freed by the tree.
        self._tree.insert(InsertParams(key=key, value=self.slots, prev_prefix_len=self.cached))

    def _with_new(self, cached_slots: Tensor, tokens: int) -> Tensor:
        """The cached slots and so many more, evicting what nobody uses; no more if there is no
        room."""
        if tokens <= 0:
            return cached_slots
        self._allocator.evict_to_free_tokens(self._tree, tokens)
        slots = self._allocator.alloc(tokens)
        if slots is None:
            return cached_slots
        try:
            return torch.cat([cached_slots, slots.to(torch.int64)])
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
    """Whether what is in the tree is plain K/V, on the device.

    A model that drafts has K/V of its own in the same slots, which packed forwards do not compute.
    """
    tree, speculation = scheduler.tree_cache, scheduler.spec_algorithm
    return (
        type(tree) is UnifiedRadixCache
        and not tree.disable
        and (speculation.is_none() or speculation.is_ngram())
        and not scheduler.enable_hierarchical_cache
        and plain_pool(scheduler.tp_worker.model_runner) is not None
    )
