"""A packed forward's attention, as SGLang's layers see it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.attention.hybrid_linear_attn_backend import HybridLinearAttnBackend
from torch import Tensor

from sglang_prefill_ext.attention.inputs import LayerInputs
from sglang_prefill_ext.border.model.latent_attention import LATENT_BACKEND, queries_and_latents
from sglang_prefill_ext.border.model.packed_batch import PackedForwardBatch
from sglang_prefill_ext.border.model.recurrent.delta_rule import delta_inputs
from sglang_prefill_ext.border.model.recurrent.state_space import PackedMamba
from sglang_prefill_ext.errors import PackedForwardError


class PackedAttentionBackend(AttentionBackend):  # type: ignore[misc]
    """SGLang's attention backend for packed forwards; ignores `save_kv_cache` and writes no slot.

    If `read_at` of the batch is set, attention of the last layer returns the read positions only.
    Output projection, MLP and final norm then run on one token a row.

    Args:
        stock: the server's own backend. Models look for the memory pools on the backend, so they
            are taken from it.
        last_layer: id of the layer that can be shortened to the read positions; None: no layer can.
        shared: ids that several layers have, of which the later ones use K/V of the first.
        chunks: `LayerInputs.chunk` of each layer by its id; None: no layer has chunks.
    """

    def __init__(
        self,
        stock: Any,
        last_layer: int | None,
        shared: Collection[int] = frozenset(),
        chunks: Mapping[int, int] | None = None,
    ) -> None:
        self._last_layer = last_layer
        self._shared = shared
        self._chunks = chunks or {}
        self.prefill_attention_backend_str = LATENT_BACKEND
        self.token_to_kv_pool = stock.token_to_kv_pool
        self.req_to_token_pool = stock.req_to_token_pool

    def prepare_prefill_qkv(
        self, *, layer: Any, forward_batch: PackedForwardBatch, **inputs: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Make queries, keys and values of a layer with latent attention, and note the latents."""
        q, latents = queries_and_latents(layer, forward_batch, **inputs)
        forward_batch.latents = latents
        return q, *latents.expand(latents.compressed, latents.rotated)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Attention of a layer; its gated delta rule if there is a `mixed_qkv`."""
        compute = self._recur if "mixed_qkv" in kwargs else self.forward_extend
        return compute(*args, **kwargs)

    def _recur(
        self,
        *,
        mixed_qkv: Tensor,
        a: Tensor,
        b: Tensor,
        layer: Any,
        forward_batch: PackedForwardBatch,
    ) -> Tensor:
        """The gated delta rule of a layer, ``[1, T, HV, Dv]``."""
        out: Tensor = forward_batch.recur(layer.layer_id, delta_inputs(layer, mixed_qkv, a, b))
        return out[None]

    def forward_extend(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
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
        if k is None or v is None:
            k, v = forward_batch.shared[layer.layer_id]
        elif layer.layer_id in self._shared:
            forward_batch.shared[layer.layer_id] = k, v
        read_at = forward_batch.read_at
        if layer.layer_id == self._last_layer and read_at is not None:
            stream = forward_batch.residual_stream
            q = q[read_at]
            stream.write(stream.residual[read_at])
            forward_batch.adapt(shortened=True)
        window: int | None = layer.sliding_window_size  # tokens before the query's; below 0: all
        window = None if window is None or window < 0 else window
        # They read the batch: if it kept them, its tensors would wait for the garbage collector.
        latents, forward_batch.latents = forward_batch.latents, None
        inputs = LayerInputs(
            q.view(-1, layer.tp_q_head_num, layer.qk_head_dim),
            k.view(-1, layer.tp_k_head_num, layer.qk_head_dim),
            v.view(-1, layer.tp_v_head_num, layer.v_head_dim),
            layer.scaling,
            *(layer.logit_cap or 0.0, window, sinks, self._chunks.get(layer.layer_id, 0)),
            latents,
        )
        out: Tensor = forward_batch.attend(layer.layer_id, inputs)
        return out.reshape(len(out), layer.tp_q_head_num * layer.v_head_dim)


class PackedHybridBackend(PackedAttentionBackend, HybridLinearAttnBackend):  # type: ignore[misc]
    """For models with layers of Mamba-2, which want a backend of this class."""

    linear_attn_backend = PackedMamba()
