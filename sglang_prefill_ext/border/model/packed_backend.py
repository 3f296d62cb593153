"""The batch of a packed forward, and what computes over it, as SGLang's layers see them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.attention.hybrid_linear_attn_backend import HybridLinearAttnBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
)
from torch import Tensor

from sglang_prefill_ext.attention.inputs import LayerInputs
from sglang_prefill_ext.border.model.latent_attention import LATENT_BACKEND, queries_and_latents
from sglang_prefill_ext.border.model.recurrent.delta_rule import delta_inputs
from sglang_prefill_ext.border.model.recurrent.state_space import PackedMamba
from sglang_prefill_ext.errors import PackedForwardError
from sglang_prefill_ext.forward.upload import upload
from sglang_prefill_ext.recurrent.layers import RecurrentInputs


def without_adapters(*, shortened: bool) -> None:
    """`PackedForwardBatch.adapt` on a server without LoRA adapters."""


@dataclass
class PackedForwardBatch(ForwardBatch):  # type: ignore[misc]
    """A `ForwardBatch` with what `PackedAttentionBackend` reads and writes."""

    # Declared fields, because SGLang copies batches with `dataclasses.replace`.
    attend: Any = None
    read_at: Any = None
    adapt: Any = without_adapters  # called before layers, see `Adapters.apply_to`
    recur: Any = None
    latents: Any = None  # of the layer that runs, if it has latent attention
    shared: Any = None  # keys and values by layer, of layers whose number later ones have, too


def packed_batch_of(
    token_ids: Tensor, positions: Tensor, row_lens: list[int], zeros: Tensor
) -> PackedForwardBatch:
    """A batch of rows without KV slots; every token gets slot 0, which SGLang uses for padding.

    Args:
        zeros: int64 ``[tokens]``.
    """
    device, rows, total = token_ids.device, len(row_lens), len(token_ids)
    (lens,) = upload([np.array(row_lens, dtype=np.int32)], device)
    return PackedForwardBatch(
        forward_mode=ForwardMode.EXTEND,
        batch_size=rows,
        input_ids=token_ids,
        positions=positions,
        req_pool_indices=zeros[:rows],
        seq_lens=lens,
        seq_lens_sum=total,
        out_cache_loc=zeros,
        extend_num_tokens=total,
        extend_seq_lens=lens,
        extend_seq_lens_cpu=row_lens,
        extend_prefix_lens=zeros.view(torch.int32)[:rows],
        extend_prefix_lens_cpu=[0] * rows,
        capture_hidden_mode=CaptureHiddenMode.NULL,
        global_num_token_non_padded_cpu=total,
        is_prefill_only=True,
        # With a mask, models leave storing K/V to the attention backend, and ours stores none.
        # Without it, some models would write all K/V to slot 0 together with the rotary embedding.
        dcp_kv_mask=zeros,
        shared={},
    )


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
        if window is not None and (window < 0 or layer.attn_type != AttentionType.DECODER):
            window = None  # packed prompts of an encoder are no longer than its window
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


def convolved(
    original: Callable[..., Tensor], conv: Any, hidden_states: Tensor, forward_batch: Any
) -> Tensor:
    """AROUND `Lfm2ShortConv.forward` and `Lfm2MoeShortConv.forward`, which read SGLang's pool."""
    if not isinstance(forward_batch, PackedForwardBatch):
        return original(conv, hidden_states, forward_batch)
    before, behind, x = conv.in_proj(hidden_states)[0].chunk(3, dim=-1)
    inputs = RecurrentInputs(before * x, conv.conv_weight, conv.conv_bias)
    out: Tensor = conv.out_proj(behind * forward_batch.recur(conv.layer_idx, inputs))[0]
    return out
