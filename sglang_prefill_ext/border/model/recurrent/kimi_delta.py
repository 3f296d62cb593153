"""SGLang's layers of Kimi's delta attention, whose keys decay channel by channel.

Kimi Linear, arXiv 2510.26692.
"""

from __future__ import annotations

from typing import Any

from sglang.kernels.ops.attention.fla.chunk_intra import chunk_kda_fwd_intra
from sglang.kernels.ops.attention.fla.cumsum import chunk_local_cumsum
from sglang.kernels.ops.attention.fla.kda import RCP_LN2, chunk_gla_fwd_o_gk
from sglang.kernels.ops.attention.fla.l2norm import l2norm_fwd
from torch import Tensor

from sglang_prefill_ext.border.model.recurrent.chunk_states import carried_over_chunks
from sglang_prefill_ext.layout.recurrence_parts import CHUNK
from sglang_prefill_ext.recurrent.device_part import DevicePart
from sglang_prefill_ext.recurrent.inputs import decay_and_step
from sglang_prefill_ext.recurrent.rule import RuleInputs

_FUSED_PROGRAMS = 256
"""Up to so many chunks times heads SGLang computes a chunk in fewer kernels."""


def weights(layer: Any) -> tuple[Tensor, Tensor]:
    """`a_log` and `dt_bias` of a `RadixLinearAttention` of Kimi Linear, ``[H, 1]``, ``[H, D]``."""
    heads = layer.num_v_heads
    return layer.A_log.view(heads, 1), layer.dt_bias.view(heads, layer.head_k_dim)


def kernel_inputs(
    a_log: Tensor, dt_bias: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor
) -> RuleInputs:
    """As `delta_rule_inputs`, for SGLang's kernels; queries are not divided."""
    return RuleInputs(l2norm_fwd(q), l2norm_fwd(k), v, *decay_and_step(a_log, dt_bias, a, b))


def carry(inputs: RuleInputs, states: Tensor, part: DevicePart, out: Tensor) -> None:
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
