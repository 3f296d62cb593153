"""SGLang's radix cache as the packed path's `PrefixCache`."""

from __future__ import annotations

from array import array
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_memory
from torch import Tensor

from sglang_prefill_ext.border.model.kv_pool import SglangRoom
from sglang_prefill_ext.border.model.model_classes import longest_packed
from sglang_prefill_ext.config import PrefillOnlyConfig, PrefixCaching
from sglang_prefill_ext.forward.kv_pool import PrivateSlots, PrivateTransaction, Room
from sglang_prefill_ext.scheduling.prefix_cache import PrefixCache
from sglang_prefill_ext.wire.arrays import Int32Array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.prefix_policy import PrefixPolicy, RowMemory

_COUNTING = ("lfu", "slru")
"""Eviction policies that count how often a prefix is inserted: SGLang inserts every prompt."""


class RadixTransaction:
    """A `PrefixTransaction`: locks the matched path of the tree, and owns the reserved slots.

    Args:
        key: of the prefix, or of as much of it as can be held.
        is_whole: it is of the whole prefix.
        counted: insert also a prefix that is cached already, as the eviction policy counts.
    """

    def __init__(
        self,
        tree: UnifiedRadixCache,
        room: SglangRoom,
        key: RadixKey,
        commit_tokens: int,
        *,
        is_whole: bool,
        counted: bool,
    ) -> None:
        self._tree, self._room = tree, room
        self._key, self._commit_tokens, self._is_whole = key, commit_tokens, is_whole
        self._counted = counted
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
        if whole and not self._is_whole:
            return False
        missing = (len(self._key) if whole else self._commit_tokens) - self.cached
        if missing <= 0:
            return True
        slots = self._room.take(missing) if whole else self._room.take_last(missing)
        if slots is None:
            return False
        try:
            # Concatenated here, so that `commit` needs no memory.
            self.slots = torch.cat([self.slots, slots])
        except Exception:
            self._room.give_back(slots)
            raise
        return True

    def commit(self) -> None:
        kept = max(self.cached, min(self._commit_tokens, len(self.slots)))
        try:
            if kept > self.cached or (kept and self._counted):
                # A duplicate that another request inserted meanwhile is freed by the tree.
                key, slots = self._key[:kept], self.slots[:kept]
                self._tree.insert(InsertParams(key=key, value=slots, prev_prefix_len=self.cached))
        finally:  # if `insert` raises, the first `kept` slots are not freed: the tree may have them
            self._let_go(kept)

    def rollback(self) -> None:
        self._let_go(self.cached)

    def _let_go(self, kept: int) -> None:
        if len(self.slots) > kept:
            self._room.give_back(self.slots[kept:])
        self._tree.unlock(self._lock)


class RadixPrefixCache:
    """The `PrefixCache` on the radix tree of stock requests.

    Packed requests have neither cache salt nor extra key, so their prefixes have the same keys in
    the tree as those of stock requests: the token ids, and the adapter's id if there is one.
    """

    shares = True

    def __init__(self, scheduler: Any, config: PrefillOnlyConfig, room: SglangRoom) -> None:
        self._tree, self._room = scheduler.tree_cache, room
        self.capacity, self.page_tokens = room.capacity, scheduler.tree_cache.page_size
        self._policy = PrefixPolicy(config.prefix_caching, page_tokens=self.page_tokens)
        never = config.prefix_caching is PrefixCaching.NEVER
        slots = scheduler.token_to_kv_pool_allocator.size
        self._rows = None if never else RowMemory(slots, self.page_tokens)
        self._counted = get_memory().radix_eviction_policy.lower() in _COUNTING

    def begin(self, prefix: Int32Array, adapter: str = "", *, keep: bool) -> RadixTransaction:
        held = prefix[: self.capacity]
        commit_tokens = self._policy.tokens_to_commit(held, adapter, keep=keep)
        return self._begun(held, adapter, commit_tokens, is_whole=len(held) == len(prefix))

    def begin_row(self, beginning: Int32Array, adapter: str = "") -> RadixTransaction:
        commit_tokens = self._policy.whole_pages(len(beginning))
        return self._begun(beginning, adapter, commit_tokens, is_whole=True)

    def rows_seen(self, rows: PackedRows, least: int) -> NDArray[np.int64] | None:
        return None if self._rows is None else self._rows.tokens_seen(rows, least)

    def begin_private(self, num_tokens: int) -> PrivateTransaction:
        return PrivateTransaction(self._room, num_tokens)

    def cached_tokens(self, prefix: Int32Array, adapter: str = "") -> int:
        prefix = prefix[: self.capacity]
        match = self._tree.match_prefix(MatchPrefixParams(key=_key(prefix, adapter)))
        return min(int(match.device_prefix_len), len(prefix))

    def _begun(
        self, prefix: Int32Array, adapter: str, commit_tokens: int, *, is_whole: bool
    ) -> RadixTransaction:
        tree, room, key = self._tree, self._room, _key(prefix, adapter)
        counted = self._counted
        return RadixTransaction(tree, room, key, commit_tokens, is_whole=is_whole, counted=counted)


def prefix_cache_of(scheduler: Any, config: PrefillOnlyConfig, room: Room) -> PrefixCache:
    """The scheduler's radix cache; `PrivateSlots` if the packed path cannot use it."""
    if shares_prefixes(room, scheduler):
        return RadixPrefixCache(scheduler, config, room)
    return PrivateSlots(room)


def shares_prefixes(room: Room, scheduler: Any) -> TypeGuard[SglangRoom]:
    """Whether packed forwards read and write prefixes in SGLang's radix cache.

    They can if SGLang's pool has all K/V of the prefixes in the tree. It does not while some are
    loaded from other memory, layer by layer. A draft model has K/V of its own for the same slots,
    which packed forwards do not compute. Neither do they write the marks by which ``--kv-canary``
    knows the slots of a prefix. Where `longest_packed` is less than the context, a longer prompt
    may have rotated the keys in the tree otherwise.
    """
    tree, speculation = scheduler.tree_cache, scheduler.spec_algorithm
    runner = scheduler.tp_worker.model_runner
    return (
        isinstance(room, SglangRoom)
        and type(tree) is UnifiedRadixCache
        and not tree.disable
        and (speculation.is_none() or speculation.is_ngram())
        and not scheduler.enable_hierarchical_cache
        and not scheduler.enable_unified_cache_external_linker
        and runner.canary_manager is None
        and longest_packed(runner.model_config) == runner.model_config.context_len
    )


def _key(prefix: Int32Array, adapter: str) -> RadixKey:
    # By way of bytes: 1 us for 1,000 tokens; by way of a list it is 45.
    return RadixKey(array("q", prefix.astype(np.int64).tobytes()), extra_key=adapter or None)
