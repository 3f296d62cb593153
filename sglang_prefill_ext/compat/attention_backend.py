"""SGLang's attention interface on top of packed attention."""

from __future__ import annotations

import dataclasses
from typing import Any

from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from torch import Tensor


@dataclasses.dataclass
class PackedForwardBatch(ForwardBatch):  # type: ignore[misc]
    """A `ForwardBatch` whose attention is a function of its own layout."""

    # A declared field, because SGLang copies batches with `dataclasses.replace`.
    attend: Any = None


class PackedAttentionBackend(AttentionBackend):  # type: ignore[misc]
    """Attention over a packed layout; writes no KV slot, whatever `save_kv_cache` says.

    Models look for the memory pools on the backend, so the stock one's are passed on.
    """

    def __init__(self, stock: Any) -> None:
        self.token_to_kv_pool = stock.token_to_kv_pool
        self.req_to_token_pool = stock.req_to_token_pool

    def forward_extend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: Any,
        forward_batch: PackedForwardBatch,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> Tensor:
        out: Tensor = forward_batch.attend(
            layer.layer_id,
            q.view(-1, layer.tp_q_head_num, layer.qk_head_dim),
            k.view(-1, layer.tp_k_head_num, layer.qk_head_dim),
            v.view(-1, layer.tp_v_head_num, layer.v_head_dim),
            layer.scaling,
        )
        return out.reshape(len(out), layer.tp_q_head_num * layer.v_head_dim)
