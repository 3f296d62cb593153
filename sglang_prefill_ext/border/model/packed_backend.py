"""A packed forward's attention, and its LoRA adapter, as SGLang's layers see them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.attention.hybrid_linear_attn_backend import HybridLinearAttnBackend
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
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
            forward_batch.adapt(len(read_at))
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


class Adapters:
    """The LoRA adapters of a rank.

    For SGLang's LoRA layers a packed forward is one sequence with one adapter. The adapter that is
    set stays in effect until the next batch sets another. Every batch of either path sets its own
    before its launch, so none uses that of another batch.

    Args:
        manager: SGLang's `LoRAManager`; None on a server without adapters.
    """

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def load(self, adapter: str) -> None:
        """Load an adapter into SGLang's memory pool of adapters, evicting others if need be.

        Batches that need an evicted adapter load it again.

        Raises:
            PackedForwardError: the server does not have the adapter (any more). That happens only
                if the client no longer waits for the answer.
        """
        if not adapter:
            return
        if self._manager is None or adapter not in self._manager.loras:
            raise PackedForwardError(f"adapter: {adapter!r} is not loaded; send its name again")
        self._manager.fetch_new_loras({adapter})

    def apply_to(self, tokens: int, adapter: str) -> None:
        """Make the following layers apply a loaded adapter, or none, to `tokens` tokens."""
        if adapter:
            lens = torch.full((1,), tokens, dtype=torch.int32, device=self._manager.device)
            batch = ForwardBatch(  # only the fields that the adapters read
                forward_mode=ForwardMode.EXTEND,
                batch_size=1,
                input_ids=None,
                req_pool_indices=None,
                seq_lens=None,
                out_cache_loc=None,
                seq_lens_sum=tokens,
                extend_num_tokens=tokens,
                extend_seq_lens=lens,
                extend_seq_lens_cpu=[tokens],
                lora_ids=[adapter],
            )
            self._manager.prepare_lora_batch(batch)
        elif self._manager is not None:
            self._manager.reset_lora_batch()
