"""SGLang's KV pool as the packed path's `KVPool`."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.mem_cache.memory_pool import KVWriteLoc, MHATokenToKVPool, MLATokenToKVPool
from torch import Tensor

from sglang_prefill_ext.attention.inputs import HeadShape, HeldKV
from sglang_prefill_ext.forward.kv_pool import share_of
from sglang_prefill_ext.recurrent.layers import HeldStates
from sglang_prefill_ext.scheduling.budget import UNLIMITED, ForwardBudget


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
