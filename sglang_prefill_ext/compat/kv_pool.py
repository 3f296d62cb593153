"""SGLang's KV pool behind the packed path's `KVPool`."""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache.memory_pool import KVWriteLoc, MHATokenToKVPool
from torch import Tensor

from sglang_prefill_ext.attention.prefix import HeldKV


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


def plain_pool(runner: Any) -> SglangPool | None:
    """The pool of a `ModelRunner`, if it holds K/V in the model's precision, a token a row."""
    pool = runner.token_to_kv_pool
    is_plain = (
        type(pool) is MHATokenToKVPool
        and pool.kv_cache_layout == "nhd"
        and pool.dtype == runner.dtype
    )
    return SglangPool(pool) if is_plain else None
