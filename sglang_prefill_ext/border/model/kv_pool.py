"""SGLang's KV pool as the packed path's `KVPool`, and the allocation of its slots as a `Room`."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.mem_cache.memory_pool import KVWriteLoc, MHATokenToKVPool, MLATokenToKVPool
from torch import Tensor

from sglang_prefill_ext.attention.inputs import HeadShape, HeldKV
from sglang_prefill_ext.forward.kv_pool import KVPool, OwnPool, Room, share_of
from sglang_prefill_ext.recurrent.layers import HeldStates
from sglang_prefill_ext.scheduling.budget import UNLIMITED, ForwardBudget

LEFT_TO_OTHERS = 16
"""One part in so many of the pool is never taken for prefixes held between forwards."""


class SglangPool:
    """SGLang's KV pool of a rank, shared with stock requests.

    Args:
        pool: must be plain, see `plain_pool`.

    Attributes:
        most_held: tokens of the longest prefix that a forward may read; known after `set_aside`.
    """

    keeps_latents = False
    most_held = UNLIMITED

    def __init__(self, pool: MHATokenToKVPool | MLATokenToKVPool) -> None:
        self._pool = pool
        self.states: HeldStates = {}

    def set_aside(self, budget: ForwardBudget) -> ForwardBudget:
        return budget

    def buffers(self, layer: int) -> HeldKV:
        keys, values = self._pool.get_kv_buffer(layer)
        return keys, values

    def store(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        where = KVWriteLoc(slots, physical=True)
        self._pool.set_kv_buffer(None, where, k, v, layer_id_override=layer)


class SglangLatentPool(SglangPool):
    """SGLang's pool of latents. A layer makes K/V of all held tokens again when it needs them.

    Args:
        heads, dtype: of these keys and values.
    """

    keeps_latents = True

    def __init__(self, pool: MLATokenToKVPool, heads: HeadShape, dtype: torch.dtype) -> None:
        super().__init__(pool)
        numbers = heads.num_heads * (heads.head_dim + heads.value_dim)
        self._bytes_per_token = 2 * numbers * dtype.itemsize  # the product, then keys and values

    def set_aside(self, budget: ForwardBudget) -> ForwardBudget:
        """See `KVPool`. Several groups of a forward may hold more together: if memory is exhausted,
        their requests run alone."""
        held_bytes, left = share_of(budget)
        self.most_held = held_bytes // self._bytes_per_token
        return left


def plain_pool(runner: Any, heads: HeadShape) -> SglangPool | None:
    """The pool of a `ModelRunner`, if it is plain, else None.

    A plain pool holds K/V of all layers, or latents, in the model's dtype, with one row a token.
    """
    pool = runner.token_to_kv_pool
    plain: SglangPool | None = None
    if type(pool) is MLATokenToKVPool and not _adapts_latents(runner.lora_manager):
        plain = SglangLatentPool(pool, heads, runner.dtype)
    elif type(pool) is MHATokenToKVPool and pool.kv_cache_layout == "nhd":
        plain = SglangPool(pool)
    return plain if plain and pool.dtype == runner.dtype else None


def _adapts_latents(adapters: Any) -> bool:
    """Whether LoRA adapters change how K/V are made of latents.

    They are applied to all tokens of a forward, and held latents are none of these.
    """
    return adapters is not None and "kv_b_proj" in adapters.target_modules


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
