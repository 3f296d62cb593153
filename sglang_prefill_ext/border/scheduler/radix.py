"""SGLang's radix cache and KV pool behind the packed path's `PrefixCache`."""

from __future__ import annotations

from array import array
from typing import Any

import torch
from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from torch import Tensor

from sglang_prefill_ext.border.scheduler.kv_pool import SglangRoom
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.forward.kv_pool import PrivateSlots, PrivateTransaction, Room
from sglang_prefill_ext.scheduling.prefix_cache import PrefixCache
from sglang_prefill_ext.wire.arrays import Int32Array
from sglang_prefill_ext.wire.prefix_policy import PrefixPolicy


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
