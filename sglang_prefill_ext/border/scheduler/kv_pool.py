"""SGLang's KV pool behind the packed path's `KVPool` and `Room`."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.mem_cache.memory_pool import KVWriteLoc, MHATokenToKVPool
from torch import Tensor

from sglang_prefill_ext.attention.inputs import HeldKV
from sglang_prefill_ext.forward.kv_pool import KVPool, OwnPool, Room

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
        self._left = self._allocator.size // LEFT_TO_OTHERS
        self.capacity = self._allocator.size - self._left

    def take(self, num_tokens: int) -> Tensor | None:
        spare = self._allocator.available_size() + self._tree.evictable_size()
        if num_tokens > spare - self._left:
            return None
        return self.take_last(num_tokens)

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
