"""SGLang's layers with a gated delta rule, as packed forwards compute them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from sglang.kernels.ops.attention.fla.chunk_delta_h import (
    chunk_gated_delta_rule_fwd_kernel_h_blockdim64,
)
from sglang.kernels.ops.attention.fla.chunk_fwd import chunk_gated_delta_rule_fwd_intra
from sglang.kernels.ops.attention.fla.chunk_o import chunk_fwd_kernel_o
from sglang.kernels.ops.attention.fla.cumsum import chunk_local_cumsum
from sglang.kernels.ops.attention.fla.l2norm import l2norm_fwd
from sglang.kernels.ops.attention.linear.fused_gdn_gating import fused_gdn_gating
from torch import Tensor

from sglang_prefill_ext.layout.recurrence_parts import CHUNK
from sglang_prefill_ext.recurrent.device_part import DevicePart
from sglang_prefill_ext.recurrent.inputs import delta_rule_inputs
from sglang_prefill_ext.recurrent.layers import (
    LayerRule,
    RecurrentInputs,
    RuleWay,
    by_torch,
)
from sglang_prefill_ext.recurrent.rule import RuleInputs

_BLOCK_D, _BLOCK_V = 128, 64
"""Of `chunk_fwd_kernel_o`, as SGLang launches it."""

_NOT_USED: dict[str, Any] = {
    **{"gk": None, "USE_GK": False, "USE_EXP2": False, "NT_BUCKET": 0, "TRACK_STATE": False},
    **{"track_state": None, "track_chunk_idx": None, "stride_track_state": 0},
}
"""Of the kernel that goes from chunk to chunk. `NT_BUCKET` would only name forms of it."""


def delta_inputs(layer: Any, mixed: Tensor, a: Tensor, b: Tensor) -> RecurrentInputs:
    """The inputs of a `RadixLinearAttention`, which carries the weights of its layer.

    Args:
        mixed: ``[T, C]``, queries, keys and values; a, b: ``[T, HV]``.
    """
    weights = (layer.A_log, layer.dt_bias)
    keys = (layer.num_k_heads, layer.head_k_dim)
    rule = LayerRule(
        heads=(keys, keys, (layer.num_v_heads, layer.head_v_dim)),
        state_shape=state_shape(layer),
        torch=by_torch(partial(delta_rule_inputs, *weights)),
        kernels=RuleWay(partial(kernel_inputs, *weights), carry),
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
    sizes = {"T": tokens, "H": heads, "Hg": key_heads, "K": dim, "V": value_dim, "BT": CHUNK}
    chunks, _ = part.lists
    lists = {"cu_seqlens": part.bounds, "chunk_indices": chunks}
    g = chunk_local_cumsum(g, chunk_size=CHUNK, **lists)
    w, u, _ = chunk_gated_delta_rule_fwd_intra(k=k, v=v, g=g, beta=beta, **lists)
    new = torch.empty_like(u)
    before = k.new_empty(len(chunks), heads, value_dim, dim)
    _go_from_chunk_to_chunk(
        {"k": k, "v": u, "w": w, "v_new": new, "g": g, "h": before}, states, part, sizes
    )
    chunk_fwd_kernel_o[(-(-value_dim // _BLOCK_V), len(chunks), heads)](
        *(q, k, new, before, g, out, part.bounds, chunks, dim**-0.5),
        **sizes,
        BK=_BLOCK_D,
        BV=_BLOCK_V,
        USE_G=True,
        IS_VARLEN=True,
        num_warps=4,
        num_stages=2,
    )


def _go_from_chunk_to_chunk(
    tensors: dict[str, Tensor], states: Tensor, part: DevicePart, sizes: dict[str, int]
) -> None:
    """Write the state before each chunk, and what its tokens add; carry states, stage by stage."""
    _, chunk_bounds = part.lists
    for ends, bounds, slots, keep in part.stages():
        programs = sizes["H"] * len(slots)

        def grid(form: dict[str, int], programs: int = programs) -> tuple[int, int]:
            return -(-sizes["V"] // form["BV"]), programs

        chunk_gated_delta_rule_fwd_kernel_h_blockdim64[grid](
            **tensors,
            initial_state=states,
            initial_state_indices=slots,
            stride_init_state=states.stride(0),
            cu_seqlens=bounds,
            chunk_offsets=chunk_bounds[ends],
            **sizes,
            USE_G=True,
            USE_INITIAL_STATE=True,
            INPLACE_UPDATE=keep,
            SAVE_NEW_VALUE=True,
            IS_VARLEN=True,
            **_NOT_USED,
        )
