"""Latent attention of DeepSeek and its kin in packed forwards."""

from __future__ import annotations

from functools import partial
from typing import Any

from sglang.srt.models.deepseek_common.attention_backend_handler import AttentionBackendRegistry
from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import (
    AttnForwardMethod,
)
from torch import Tensor

from sglang_prefill_ext.attention.inputs import HeldKV, Latents

LATENT_BACKEND = "prefill_only"
"""Name of an attention backend, for which models with latent attention make K/V of all heads. For
new tokens that is less work than to absorb the projections into queries and output."""


AttentionBackendRegistry.register(LATENT_BACKEND, lambda _attention, _batch: AttnForwardMethod.MHA)


def queries_and_latents(
    layer: Any,
    batch: Any,
    *,
    q: Tensor,
    q_pe: Tensor,
    kv_a: Tensor,
    k_pe: Tensor,
    positions: Tensor,
) -> tuple[Tensor, Latents]:
    """Give queries and keys their positions, as SGLang does, but write nothing to the KV pool.

    Args:
        layer: a `DeepseekV2AttentionMLA`.
        q: ``[T, H, D]``; q_pe: the part of it that gets positions, ``[T, H, r]``.
        kv_a: ``[T, R]``; k_pe: ``[T, 1, r]``; see `Latents`.
        positions: ``[T]``.
    """
    if layer.rotary_emb is not None:
        q_pe, k_pe = layer.rotary_emb(positions, q_pe, k_pe)
    q[..., layer.qk_nope_head_dim :] = q_pe
    return q, Latents(kv_a, k_pe, partial(_keys_and_values, layer, batch))


def _keys_and_values(layer: Any, batch: Any, compressed: Tensor, rotated: Tensor) -> HeldKV:
    heads = layer.kv_b_proj(compressed)[0].view(len(compressed), layer.num_local_heads, -1)
    k_nope, v = heads.split([layer.qk_nope_head_dim, layer.v_head_dim], dim=-1)
    return layer._concat_and_cast_mha_k(k_nope, rotated, batch), v
