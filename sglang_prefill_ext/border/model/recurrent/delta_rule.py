"""SGLang's layers with a gated delta rule, as packed forwards compute them.

Of Kimi's delta attention keys decay channel by channel (Kimi Linear, arXiv 2510.26692).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from sglang.kernels.ops.attention.fla.chunk_fwd import chunk_gated_delta_rule_fwd_intra
from sglang.kernels.ops.attention.fla.chunk_intra import chunk_kda_fwd_intra
from sglang.kernels.ops.attention.fla.chunk_o import chunk_fwd_kernel_o
from sglang.kernels.ops.attention.fla.cumsum import chunk_local_cumsum
from sglang.kernels.ops.attention.fla.kda import RCP_LN2, chunk_gla_fwd_o_gk
from sglang.kernels.ops.attention.fla.l2norm import l2norm_fwd
from sglang.kernels.ops.attention.linear.fused_gdn_gating import fused_gdn_gating
from torch import Tensor

from sglang_prefill_ext.border.model.recurrent.chunk_states import carried_over_chunks
from sglang_prefill_ext.layout.recurrence_parts import CHUNK
from sglang_prefill_ext.recurrent.device_part import DevicePart
from sglang_prefill_ext.recurrent.inputs import decay_and_step, delta_rule_inputs
from sglang_prefill_ext.recurrent.layers import LayerRule, RecurrentInputs, RuleWay, by_torch
from sglang_prefill_ext.recurrent.rule import RuleInputs

_BLOCK_D, _BLOCK_V = 128, 64
"""Of `chunk_fwd_kernel_o`, as SGLang launches it."""

_FUSED_PROGRAMS = 256
"""Up to so many chunks times heads SGLang computes a chunk of Kimi's in fewer kernels."""


def delta_inputs(layer: Any, mixed: Tensor, a: Tensor, b: Tensor) -> RecurrentInputs:
    """The inputs of a `RadixLinearAttention`, which carries the weights of its layer.

    Args:
        mixed: ``[T, C]``, queries, keys and values.
        a, b: ``[T, HV]``; of Kimi's, ``[1, T, H, D]`` and ``[1, T, H]``.
    """
    keys = (layer.num_k_heads, layer.head_k_dim)
    if a.ndim == 4:
        a, b = a[0], b[0]
        weights = layer.A_log.view(-1, 1), layer.dt_bias.view(-1, layer.head_k_dim)
        prepare, carried = kimi_kernel_inputs, carry_kimi
    else:
        weights, prepare, carried = (layer.A_log, layer.dt_bias), kernel_inputs, carry
    rule = LayerRule(
        heads=(keys, keys, (layer.num_v_heads, layer.head_v_dim)),
        state_shape=state_shape(layer),
        torch=by_torch(partial(delta_rule_inputs, *weights)),
        kernels=RuleWay(partial(prepare, *weights), carried),
    )
    return RecurrentInputs(mixed, layer.conv_weights, layer.bias, rule, (a, b))


def state_shape(layer: Any) -> tuple[int, int, int]:
    """See `LayerRule`; of a rank."""
    return layer.num_v_heads, layer.head_v_dim, layer.head_k_dim


def kernel_inputs(
    a_log: Tensor, dt_bias: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor
) -> RuleInputs:
    """As `delta_rule_inputs`, by SGLang's Triton kernels; queries are not divided."""
    g, beta = fused_gdn_gating(a_log, a, b, dt_bias)
    return RuleInputs(l2norm_fwd(q), l2norm_fwd(k), v, g[0], beta[0])


def carry(inputs: RuleInputs, states: Tensor, part: DevicePart, out: Tensor) -> None:
    """The rule by the kernels of SGLang's `chunk_gated_delta_rule`.

    That function would copy the lengths of sequences to the host, to list their chunks, and would
    compute prefixes and rows by launches of their own.
    """
    q, k, v, g, beta = (each[None] for each in inputs[:5] if each is not None)
    (tokens, heads, value_dim), (key_heads, dim) = inputs.v.shape, inputs.q.shape[1:]
    chunks, _ = part.lists
    lists = {"cu_seqlens": part.bounds, "chunk_indices": chunks}
    g = chunk_local_cumsum(g, chunk_size=CHUNK, **lists)
    w, u, _ = chunk_gated_delta_rule_fwd_intra(k=k, v=v, g=g, beta=beta, **lists)
    before, new = carried_over_chunks(k, w, u, states, part, g=g)
    chunk_fwd_kernel_o[(-(-value_dim // _BLOCK_V), len(chunks), heads)](
        *(q, k, new, before, g, out, part.bounds, chunks, dim**-0.5),
        **{"T": tokens, "H": heads, "Hg": key_heads, "K": dim, "V": value_dim, "BT": CHUNK},
        BK=_BLOCK_D,
        BV=_BLOCK_V,
        USE_G=True,
        IS_VARLEN=True,
        num_warps=4,
        num_stages=2,
    )


def kimi_kernel_inputs(
    a_log: Tensor, dt_bias: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor
) -> RuleInputs:
    """As `kernel_inputs`, of Kimi's."""
    return RuleInputs(l2norm_fwd(q), l2norm_fwd(k), v, *decay_and_step(a_log, dt_bias, a, b))


def carry_kimi(inputs: RuleInputs, states: Tensor, part: DevicePart, out: Tensor) -> None:
    """The rule by the kernels of SGLang's `chunk_kda`, with lists of chunks from the host."""
    q, k, v, g, beta = (each[None] for each in inputs[:5] if each is not None)
    chunks, _ = part.lists
    lists = {"cu_seqlens": part.bounds, "chunk_indices": chunks}
    scale, fuses = q.shape[-1] ** -0.5, len(chunks) * q.shape[2] <= _FUSED_PROGRAMS
    g = chunk_local_cumsum(g, chunk_size=CHUNK, scale=RCP_LN2, **lists)
    w, u, _, decayed, scores, _ = chunk_kda_fwd_intra(
        *(q, k, v, g, beta, scale),
        chunk_size=CHUNK,
        fuse_diagonal=fuses,
        fuse_recompute=fuses,
        **lists,
    )
    before, new = carried_over_chunks(decayed, w, u, states, part, gk=g)
    chunk_gla_fwd_o_gk(q, new, g, scores, before, out[None], scale, chunk_size=CHUNK, **lists)
