"""SGLang's KV pool and radix cache behind the packed path's `KVPool`, `Room` and `PrefixCache`."""

from __future__ import annotations

from array import array
from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.memory_pool import KVWriteLoc, MHATokenToKVPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from torch import Tensor

from sglang_prefill_ext.attention.inputs import HeldKV
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.forward.kv_pool import (
    KVPool,
    OwnPool,
    PrivateSlots,
    PrivateTransaction,
    Room,
)
from sglang_prefill_ext.scheduling.prefix_cache import PrefixCache
from sglang_prefill_ext.wire.arrays import Int32Array
from sglang_prefill_ext.wire.prefix_policy import PrefixPolicy

LEFT_TO_OTHERS = 16
"""Of so many parts of the pool, what is held from one forward to the next leaves one."""


class SglangPool:
    """The pool of a rank, whose slots stock requests have, too.

    Args:
        pool: plain, see `plain_pool`.
    """

    def __init__(self, pool: MHATokenToKVPool) -> None:
        self._pool = pool

    def buffers(self, layer: int) -> HeldKV:
        keys, values = self._pool.get_kv_buffer(layer)
        return keys, values

    def store(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        where = KVWriteLoc(slots, physical=True)
        self._pool.set_kv_buffer(None, where, k, v, layer_id_override=layer)


class SglangRoom:
    """Slots that SGLang's allocator has, or its tree gives up for others.

    What is held from one forward to the next leaves a part of them to the generations that run
    meanwhile: SGLang would have to take back those that find no slot for their next token.

    Args:
        scheduler: whose pool is plain.
    """

    def __init__(self, scheduler: Any) -> None:
        self._tree = scheduler.tree_cache
        self._allocator = scheduler.token_to_kv_pool_allocator
        self._left: int = self._allocator.size // LEFT_TO_OTHERS
        self.capacity = self._allocator.size - self._left

    @property
    def _spare(self) -> int:
        """Slots that are not left to generations; below 0 if these have fewer."""
        spare: int = self._allocator.available_size() + self._tree.evictable_size()
        return spare - self._left

    def is_short(self) -> bool:
        return self._spare < 0

    def take(self, num_tokens: int) -> Tensor | None:
        return self.take_last(num_tokens) if num_tokens <= self._spare else None

    def take_last(self, num_tokens: int) -> Tensor | None:
        """Likewise to the last slot, for what can be evicted as soon as its forward has ended."""
        page = self._allocator.page_size
        whole_pages = -(-num_tokens // page) * page
        self._allocator.evict_to_free_tokens(self._tree, whole_pages)
        slots = self._allocator.alloc(whole_pages)
        return None if slots is None else slots[:num_tokens].to(torch.int64)

    def give_back(self, slots: Tensor) -> None:
        self._allocator.free(slots)


def plain_pool(runner: Any) -> SglangPool | None:
    """The pool of a `ModelRunner`, if it holds K/V in the model's precision, a token a row."""
    pool = runner.token_to_kv_pool
    is_plain = (
        type(pool) is MHATokenToKVPool
        and pool.kv_cache_layout == "nhd"
        and pool.dtype == runner.dtype
    )
    return SglangPool(pool) if is_plain else None


def room_in(pool: KVPool, scheduler: Any) -> Room:
    """Room in the pool of a scheduler's model."""
    return pool if isinstance(pool, OwnPool) else SglangRoom(scheduler)


class RadixTransaction:
    """Locks the matched path of the tree, and owns the slots that are reserved behind it."""

    def __init__(
        self, tree: UnifiedRadixCache, room: SglangRoom, key: RadixKey, commit_tokens: int
    ) -> None:
        self._tree, self._room = tree, room
        self._key, self._commit_tokens = key, commit_tokens
        match = tree.match_prefix(MatchPrefixParams(key=key))
        self.cached = min(int(match.device_prefix_len), len(key))
        self._lock = tree.lock(match.last_device_node)
        try:
            path = tree.path_device_indices(match.last_device_node)
            self.slots: Tensor = path[: self.cached].to(torch.int64)
        except Exception:
            tree.unlock(self._lock)
            raise

    def reserve(self, *, whole: bool) -> bool:
        missing = (len(self._key) if whole else self._commit_tokens) - self.cached
        if missing <= 0:
            return True
        slots = self._room.take(missing) if whole else self._room.take_last(missing)
        if slots is None:
            return False
        try:
            # Made here, so that `commit` cannot fail.
            self.slots = torch.cat([self.slots, slots])
        except Exception:
            self._room.give_back(slots)
            raise
        return True

    def commit(self) -> None:
        kept = max(self.cached, min(self._commit_tokens, len(self.slots)))
        try:
            if kept > self.cached:
                # A duplicate that another request inserted meanwhile is freed by the tree.
                key, slots = self._key[:kept], self.slots[:kept]
                self._tree.insert(InsertParams(key=key, value=slots, prev_prefix_len=self.cached))
        finally:  # should it raise, the slots stay the tree's own, as it may have some
            self._let_go(kept)

    def rollback(self) -> None:
        self._let_go(self.cached)

    def _let_go(self, kept: int) -> None:
        if len(self.slots) > kept:
            self._room.give_back(self.slots[kept:])
        self._tree.unlock(self._lock)


class RadixPrefixCache:
    """Transactions on the tree that stock requests use too.

    Packed requests carry neither cache salt nor extra key, so their prefixes live where SGLang
    has those of its own requests: under the adapter's id, or without one under no name.
    """

    shares = True

    def __init__(self, tree: UnifiedRadixCache, room: SglangRoom, policy: PrefixPolicy) -> None:
        self._tree, self._room, self._policy = tree, room, policy
        self.capacity = room.capacity

    def begin(self, prefix: Int32Array, adapter: str = "", *, keep: bool) -> RadixTransaction:
        commit_tokens = self._policy.tokens_to_commit(prefix, adapter, keep=keep)
        return RadixTransaction(self._tree, self._room, _key(prefix, adapter), commit_tokens)

    def begin_private(self, num_tokens: int) -> PrivateTransaction:
        return PrivateTransaction(self._room, num_tokens)

    def cached_tokens(self, prefix: Int32Array, adapter: str = "") -> int:
        match = self._tree.match_prefix(MatchPrefixParams(key=_key(prefix, adapter)))
        return min(int(match.device_prefix_len), len(prefix))


def prefix_cache_of(scheduler: Any, config: PrefillOnlyConfig, room: Room) -> PrefixCache:
    """The scheduler's cache; room alone where the packed path can neither read nor write it.

    Args:
        room: in the pool of the scheduler's model.
    """
    if not shares_prefixes(scheduler, room):
        return PrivateSlots(room)
    assert isinstance(room, SglangRoom), "what is shared lies in SGLang's pool"
    tree = scheduler.tree_cache
    policy = PrefixPolicy(config.prefix_caching, page_tokens=tree.page_size)
    return RadixPrefixCache(tree, room, policy)


def shares_prefixes(scheduler: Any, room: Room) -> bool:
    """Whether packed forwards read and write prefixes that are in SGLang's radix cache."""
    return isinstance(room, SglangRoom) and _is_plain(scheduler)


def _key(prefix: Int32Array, adapter: str) -> RadixKey:
    return RadixKey(array("q", prefix.tolist()), extra_key=adapter or None)


def _is_plain(scheduler: Any) -> bool:
    """Whether all K/V of what is in the tree are in the pool.

    A model that drafts has K/V of its own in the same slots, which packed forwards do not compute.
    """
    tree, speculation = scheduler.tree_cache, scheduler.spec_algorithm
    return (
        type(tree) is UnifiedRadixCache
        and not tree.disable
        and (speculation.is_none() or speculation.is_ngram())
        and not scheduler.enable_hierarchical_cache
    )
