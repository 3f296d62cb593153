"""The allocation of slots in SGLang's KV pool as the packed path's `Room`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sglang_prefill_ext.border.model.kv_pool import SglangPool
from sglang_prefill_ext.forward.kv_pool import KVPool, OwnPool, Room

LEFT_TO_OTHERS = 16
"""One part in so many of the pool is never taken for prefixes held between forwards."""


class SglangRoom:
    """Allocates slots by SGLang's allocator, evicting from the radix cache if need be.

    `take`, for prefixes that are held between forwards, leaves a part of the pool to generations
    that run meanwhile: SGLang retracts generations that find no slot for their next token.

    Args:
        scheduler: its pool must be plain.
        pool: that pool.
    """

    def __init__(self, scheduler: Any, pool: SglangPool) -> None:
        self._pool = pool
        self._tree = scheduler.tree_cache
        self._allocator = scheduler.token_to_kv_pool_allocator
        self._left: int = self._allocator.size // LEFT_TO_OTHERS

    @property
    def capacity(self) -> int:
        size: int = self._allocator.size
        return min(size - self._left, self._pool.most_held)

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
        """Take slots, down to the last one, for tokens that can be evicted after their forward."""
        page = self._allocator.page_size
        whole_pages = -(-num_tokens // page) * page
        self._allocator.evict_to_free_tokens(self._tree, whole_pages)
        slots = self._allocator.alloc(whole_pages)
        return None if slots is None else slots[:num_tokens].to(torch.int64)

    def give_back(self, slots: Tensor) -> None:
        # `free` would look for the pages of these slots on the device, and wait for its forwards.
        self._allocator.free_segment(slots, start_pos=0)


def room_in(pool: KVPool, scheduler: Any) -> Room:
    if isinstance(pool, OwnPool):
        return pool
    assert isinstance(pool, SglangPool), "the pools of `SglangModel`"
    return SglangRoom(scheduler, pool)
