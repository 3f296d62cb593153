"""Bidirectional, latent and gated attention, and gated delta rules, on the CPU reference platform.

SGLang computes gates and rules with Triton; here torch computes them.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import torch
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.models.deepseek_common.attention_backend_handler import _dispatch_mla_subtype
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from sglang_prefill_ext.border.cpu.recurrent import carried_over_pool
from sglang_prefill_ext.border.model.recurrent.delta_rule import delta_inputs

_WHOLE_PROMPT = 1 << 30
"""A window that no prompt fills."""


def over_latents(original: Callable[..., Any], attention: Any, batch: Any) -> Any:
    """AROUND `DeepseekV2AttentionMLA.dispatch_attn_forward_method`: absorb keys and values.

    Torch's backend takes them from the KV pool, and that keeps latents.
    """
    method = original(attention, batch)
    if attention.current_attention_backend != "torch_native":
        return method
    return _dispatch_mla_subtype(attention, batch)


def both_ways(
    original: Callable[..., Tensor],
    backend: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer: Any,
    *more: Any,
    **options: Any,
) -> Tensor:
    """AROUND `TorchNativeAttnBackend.forward_extend`: some layers of decoders see what follows.

    Torch's backend would mask it, as it does for all layers but encoders'. If the layer has a
    window, that reaches as far to the right as to the left.
    """
    if layer.attn_type == AttentionType.DECODER_BIDIRECTIONAL:
        layer, backend, window = copy(layer), copy(backend), layer.sliding_window_size
        layer.sliding_window_size = _WHOLE_PROMPT if window is None or window < 0 else window
        backend._make_sliding_window_mask = _near
    return original(backend, q, k, v, layer, *more, **options)


def _near(*, q_len: int, kv_len: int, sliding_window_size: int, device: Any) -> Tensor:
    """Which keys each query sees; bool ``[q_len, kv_len]``."""
    places = torch.arange(max(q_len, kv_len), device=device)
    return (places[:q_len, None] - places[None, :kv_len]).abs() <= sliding_window_size


def carried(
    _original: Callable[..., Tensor],
    backend: Any,
    layer: Any,
    forward_batch: Any,
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    **_flags: Any,
) -> Tensor:
    """AROUND `GDNAttnBackend.forward_extend` and `forward_decode`.

    Carry the states in SGLang's pool through a batch; return the outputs, ``[1, T, HV, Dv]``.
    """
    if forward_batch.logical_forward_mode.is_decode():
        lens = [1] * forward_batch.batch_size
        begins = torch.zeros(len(lens), dtype=torch.bool)
    else:
        lens = forward_batch.extend_seq_lens_cpu
        begins = forward_batch.extend_prefix_lens == 0
    cache = backend.req_to_token_pool.mamba2_layer_cache(layer.layer_id)
    slots = backend.forward_metadata.mamba_cache_indices
    inputs = delta_inputs(layer, mixed_qkv, a, b)
    return carried_over_pool(inputs, cache, slots, lens, begins)[None]


def gated_norm(
    original: Callable[..., Tensor], norm: Any, x: Tensor, z: Tensor | None = None
) -> Tensor:
    """AROUND `RMSNorm.forward` of SGLang's gated norms; others than those of such layers stay."""
    if norm.group_size is not None or not norm.norm_before_gate:
        return original(norm, x, z)
    out = rms_norm(x.float(), norm.weight.shape, norm.weight.float(), norm.eps)
    if z is None:
        return out.to(x.dtype)
    gate = z.float().sigmoid() if norm.activation == "sigmoid" else silu(z.float())
    return (out * gate).to(x.dtype)


def gated(
    _original: Callable[..., Tensor],
    attn_output: Tensor,
    gate: Tensor,
    _inplace: object = None,
    _quant: object = None,
    **_flags: Any,
) -> Tensor:
    """AROUND `fused_sigmoid_mul`, whose callers read the result only."""
    return attn_output * gate.reshape(attn_output.shape).sigmoid()


def divided(
    _original: Callable[..., Any],
    mixed_qkvz: Tensor,
    mixed_ba: Tensor,
    num_heads_qk: int,
    num_heads_v: int,
    head_qk: int,
    head_v: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """AROUND `fused_qkvzba_split_reshape_cat_contiguous`: the parts of two projections."""
    values = num_heads_v * head_v
    sizes = [2 * num_heads_qk * head_qk + values, values]
    mixed_qkv, z = torch.split(mixed_qkvz, sizes, dim=-1)
    b, a = mixed_ba.chunk(2, dim=-1)
    return mixed_qkv, z.reshape(-1, num_heads_v, head_v), b, a
