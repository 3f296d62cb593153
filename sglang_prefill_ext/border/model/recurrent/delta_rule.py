"""SGLang's layers with a gated delta rule, as packed forwards compute them.

Of Kimi's delta attention keys decay channel by channel (Kimi Linear, arXiv 2510.26692).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from sglang.kernels.ops.attention.fla.chunk_delta_h import (
    chunk_gated_delta_rule_fwd_kernel_h_blockdim64,
)
from sglang.kernels.ops.attention.fla.chunk_fwd import chunk_gated_delta_rule_fwd_intra
from sglang.kernels.ops.attention.fla.chunk_intra import chunk_kda_fwd_intra
from sglang.kernels.ops.attention.fla.chunk_o import chunk_fwd_kernel_o
from sglang.kernels.ops.attention.fla.cumsum import chunk_local_cumsum
from sglang.kernels.ops.attention.fla.kda import RCP_LN2, chunk_gla_fwd_o_gk
from sglang.kernels.ops.attention.fla.l2norm import l2norm_fwd
from sglang.kernels.ops.attention.linear.fused_gdn_gating import fused_gdn_gating
from torch import Tensor

from sglang_prefill_ext.layout.recurrence_parts import CHUNK
from sglang_prefill_ext.recurrent.inputs import decay_and_step, delta_rule_inputs
from sglang_prefill_ext.recurrent.layers import LayerRule, RecurrentInputs, RuleWay, by_torch
from sglang_prefill_ext.recurrent.rule import DevicePart, RuleInputs

_BLOCK_D, _BLOCK_V = 128, 64
"""Of `chunk_fwd_kernel_o`, as SGLang launches it."""

_FUSED_PROGRAMS = 256
"""Up to so many chunks times heads SGLang computes a chunk of Kimi's in fewer kernels."""

_NOT_USED: dict[str, Any] = {
    **{"NT_BUCKET": 0, "TRACK_STATE": False},
    **{"track_state": None, "track_chunk_idx": None, "stride_track_state": 0},
}
"""`NT_BUCKET` would only name forms of the kernel."""


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


def carried_over_chunks(
    k: Tensor,
    w: Tensor,
    u: Tensor,
    states: Tensor,
    part: DevicePart,
    *,
    g: Tensor | None = None,
    gk: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Carry states through the sequences of a part, stage by stage.

    SGLang's function for it would compute prefixes and rows by calls of their own.

    Args:
        k: ``[1, T, Hk, D]``; w: ``[1, T, H, D]``; u: ``[1, T, H, Dv]``; see SGLang.
        states: ``[slots, H, Dv, D]``; replaced where sequences are prefixes.
        g: decays of heads, natural logarithms ``[1, T, H]``; None with `gk`.
        gk: decays of channels, logarithms to base 2, ``[1, T, H, D]``; None with `g`.

    Returns:
        The state before each chunk, ``[1, chunks, H, Dv, D]``, and what each token adds, like `u`.
    """
    (_, tokens, key_heads, dim), (heads, value_dim) = k.shape, u.shape[2:]
    chunks, chunk_bounds = part.lists
    new, before = torch.empty_like(u), k.new_empty(1, len(chunks), heads, value_dim, dim)
    for ends, bounds, slots, keep in part.stages():
        programs = heads * len(slots)

        def grid(form: dict[str, int], programs: int = programs) -> tuple[int, int]:
            return -(-value_dim // form["BV"]), programs

        chunk_gated_delta_rule_fwd_kernel_h_blockdim64[grid](
            **{"k": k, "v": u, "w": w, "v_new": new, "g": g, "gk": gk, "h": before},
            initial_state=states,
            initial_state_indices=slots,
            stride_init_state=states.stride(0),
            cu_seqlens=bounds,
            chunk_offsets=chunk_bounds[ends],
            **{"T": tokens, "H": heads, "Hg": key_heads, "K": dim, "V": value_dim, "BT": CHUNK},
            USE_G=g is not None,
            USE_GK=gk is not None,
            USE_EXP2=gk is not None,
            USE_INITIAL_STATE=True,
            INPLACE_UPDATE=keep,
            SAVE_NEW_VALUE=True,
            IS_VARLEN=True,
            **_NOT_USED,
        )
    return before, new
