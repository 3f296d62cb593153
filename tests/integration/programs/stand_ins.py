"""What `family_runner` replaces of SGLang's models that would fail without a GPU."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from sglang.kernels.ops.attention.fla.fused_norm_gate import FusedRMSNormGated
from sglang.srt.layers.attention.linear.kda_backend import KDAAttnBackend
from sglang.srt.layers.layernorm import Gemma4RMSNorm
from sglang.srt.layers.moe import fused_moe_native
from sglang.srt.models import (
    afmoe,
    ernie4,
    llama4,
    longcat_flash,
    minimax_m2,
    nemotron_h,
    qwen2_moe,
)

from sglang_prefill_ext.border import patches
from sglang_prefill_ext.border.cpu.recurrent import carried_over_pool
from sglang_prefill_ext.border.model.recurrent.delta_rule import delta_inputs
from sglang_prefill_ext.patching.spec import Group

native_experts = fused_moe_native.moe_forward_native
"""SGLang's own experts on a CPU, all of which have a gate."""


def experts_in_torch(
    hidden: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    topk_output: Any,
    moe_runner_config: Any,
) -> torch.Tensor:
    """Stands in for SGLang's `fused_moe`, which needs a GPU."""
    out = torch.zeros_like(hidden)
    for expert, (up, down) in enumerate(zip(w1, w2, strict=True)):
        tokens, places = torch.where(topk_output.topk_ids == expert)
        made = activated(hidden[tokens] @ up.T, moe_runner_config.activation) @ down.T
        out.index_add_(0, tokens, made * topk_output.topk_weights[tokens, places, None])
    return out * (moe_runner_config.routed_scaling_factor or 1.0)


def activated(made: torch.Tensor, activation: str) -> torch.Tensor:
    """Of an expert; all but those with `relu2` have a gate, which comes first."""
    if activation == "relu2":
        return made.relu().square()
    gate, up = made.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def all_experts_in_torch(
    layer: Any, hidden: torch.Tensor, topk_output: Any, moe_runner_config: Any
) -> torch.Tensor:
    """Stands in for experts that SGLang computes only on a GPU.

    They have no gate, or weights on their inputs, or a token has one of them twice.
    """
    chosen = topk_output.topk_ids.sort(dim=-1).values
    if moe_runner_config.activation == "relu2" or not chosen.diff(dim=-1).all():
        weights = (layer.w13_weight, layer.w2_weight)
        return experts_in_torch(hidden, *weights, topk_output, moe_runner_config)
    if moe_runner_config.apply_router_weight_on_input:  # of one expert
        hidden = hidden * topk_output.topk_weights
        ones = torch.ones_like(topk_output.topk_weights)
        topk_output = topk_output._replace(topk_weights=ones)
        moe_runner_config = replace(moe_runner_config, apply_router_weight_on_input=False)
    return native_experts(layer, hidden, topk_output, moe_runner_config)


def channels_in_torch(
    backend: Any,
    layer: Any,
    forward_batch: Any,
    mixed_qkv: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    **_flags: Any,
) -> torch.Tensor:
    """Stands in for Kimi's delta attention over SGLang's pool, whose kernels need a GPU."""
    pool = backend.req_to_token_pool.mamba2_layer_cache(layer.layer_id)
    cache = SimpleNamespace(conv=[pool.conv[0].transpose(1, 2)], temporal=pool.temporal)
    slots, lens = backend.forward_metadata.mamba_cache_indices, forward_batch.extend_seq_lens_cpu
    inputs, begins = delta_inputs(layer, mixed_qkv, a, b), forward_batch.extend_prefix_lens == 0
    return carried_over_pool(inputs, cache, slots, lens, begins)[None]


def idle_experts_in_torch(
    expert_indices: torch.Tensor,
    expert_scales: torch.Tensor,
    num_experts: int,
    zero_expert_type: str,
    hidden_states: torch.Tensor,
) -> torch.Tensor:
    """Stands in for LongCat's experts that do nothing, whose kernel takes long to interpret."""
    idle = expert_indices >= num_experts
    passed = (expert_scales * idle).sum(dim=-1, keepdim=True) * hidden_states
    expert_indices[idle], expert_scales[idle] = 0, 0.0
    return passed


def gate_in_torch(
    hidden: torch.Tensor, gate: torch.Tensor, shared: torch.Tensor, out: torch.Tensor
) -> None:
    """Stands in for the gate of Qwen's shared expert, whose kernel takes long to interpret."""
    out += (hidden @ gate).sigmoid()[:, None] * shared


def gated_norm_in_torch(norm: Any, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Stands in for SGLang's gated norm, whose kernel takes long to interpret, too."""
    activate = torch.sigmoid if norm.activation == "sigmoid" else torch.nn.functional.silu
    made = torch.nn.functional.rms_norm(x, norm.weight.shape, norm.weight, norm.eps)
    return made * activate(gate)


def norms_in_torch(
    norms: Any, q: torch.Tensor, k: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """SGLang's own norms of MiniMax M2, one after the other; its kernel for both needs a GPU."""
    return norms._q_norm(q), norms._k_norm(k)


def product_in_float32(a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    """Stands in for a product whose result has another dtype, which only a GPU computes."""
    return a.to(out_dtype) @ b.to(out_dtype)


def scaled_norm(norm: Any, x: torch.Tensor) -> torch.Tensor:
    """As on a GPU; on a CPU, SGLang leaves out the scale of Gemma 4's router."""
    return (norm._norm(x.float()) * norm.weight.float()).type_as(x)


def without_a_gpu() -> None:
    """Change SGLang's models that would fail without a GPU, so that they run."""
    ernie4._is_cpu = True  # as on SGLang's own CPU platform; otherwise its router fails
    afmoe.fused_moe = experts_in_torch
    longcat_flash.zero_experts_compute_triton = idle_experts_in_torch
    qwen2_moe.fused_gate_sigmoid_mul_add = gate_in_torch
    FusedRMSNormGated.forward = gated_norm_in_torch
    minimax_m2.MiniMaxM2QKRMSNorm._forward_naive = norms_in_torch
    fused_moe_native.moe_forward_native = all_experts_in_torch
    # On a CPU, Llama 4 would leave out positions and round to bfloat16.
    llama4._is_cuda = llama4._is_npu = True
    llama4.Llama4MoE._forward_core_shared_routed_overlap = llama4.Llama4MoE._forward_core_normal
    torch._dynamo.config.disable = True
    nemotron_h.torch = SimpleNamespace(**vars(torch) | {"mm": product_in_float32})
    Gemma4RMSNorm.forward_native = scaled_norm
    KDAAttnBackend.forward_extend = channels_in_torch
    patches.apply([Group.CPU, Group.SCHEDULER])
