"""SGLang's attention interface on top of packed attention."""

from __future__ import annotations

import dataclasses
from typing import Any

from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from torch import Tensor

from sglang_prefill_ext.attention.inputs import LayerInputs
from sglang_prefill_ext.attention.variant import AttentionVariant
from sglang_prefill_ext.border.model.capability import window_of
from sglang_prefill_ext.errors import PackedForwardError


@dataclasses.dataclass
class PackedForwardBatch(ForwardBatch):  # type: ignore[misc]
    """A `ForwardBatch` whose attention is a function of its own layout."""

    # Declared fields, because SGLang copies batches with `dataclasses.replace`.
    attend: Any = None
    read_at: Any = None
    adapt: Any = None  # tells the layers' adapters how many tokens they see from here on


class PackedAttentionBackend(AttentionBackend):  # type: ignore[misc]
    """Attention over a packed layout; writes no KV slot, whatever `save_kv_cache` says.

    Where nothing reads the last layer's output but at some positions, only these leave its
    attention; output projection, MLP and final norm then run on one token a row.

    Args:
        stock: the server's own backend. Models look for the memory pools on the backend, so
            the stock one's are passed on.
        last_layer: id of the layer after whose attention only the read positions go on, if any.
    """

    def __init__(self, stock: Any, last_layer: int | None) -> None:
        self._last_layer = last_layer
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
        sinks: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        if kwargs:
            raise PackedForwardError(
                f"Packed attention knows no {', '.join(kwargs)}, which layer {layer.layer_id} "
                "asks for; this model needs the stock path"
            )
        read_at = forward_batch.read_at
        if layer.layer_id == self._last_layer and read_at is not None:
            stream = forward_batch.residual_stream
            q = q[read_at]
            stream.write(stream.residual[read_at])
            forward_batch.adapt(len(read_at))
        inputs = LayerInputs(
            q.view(-1, layer.tp_q_head_num, layer.qk_head_dim),
            k.view(-1, layer.tp_k_head_num, layer.qk_head_dim),
            v.view(-1, layer.tp_v_head_num, layer.v_head_dim),
            layer.scaling,
            AttentionVariant(layer.logit_cap, window_of(layer), sinks),
        )
        out: Tensor = forward_batch.attend(layer.layer_id, inputs)
        return out.reshape(len(out), layer.tp_q_head_num * layer.v_head_dim)
