"""SGLang's layers with a gated delta rule, as packed forwards compute them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from sglang.kernels.ops.attention.linear.fused_gdn_gating import fused_gdn_gating
from sglang.srt.layers.attention.linear.kernels.gdn_triton import TritonGDNKernel
from torch import Tensor

from sglang_prefill_ext.recurrent.delta_rule import RuleInputs, gates
from sglang_prefill_ext.recurrent.layers import DeltaInputs, Stretch, rule_by_torch


def delta_inputs(
    layer: Any, mixed: Tensor, a: Tensor, b: Tensor, state_dtype: torch.dtype
) -> DeltaInputs:
    """The inputs of a `RadixLinearAttention`, which carries the weights of its layer.

    Args:
        mixed: ``[T, C]``; a, b: ``[T, HV]``; see `DeltaInputs`.
    """
    on_gpu = mixed.is_cuda and mixed.dtype != torch.float32  # in which the kernels do not compute
    return DeltaInputs(
        *(mixed, a, b, layer.conv_weights, layer.bias),
        key_shape=(layer.num_k_heads, layer.head_k_dim),
        value_shape=(layer.num_v_heads, layer.head_v_dim),
        state_dtype=state_dtype,
        gates=partial(_gates if on_gpu else gates, layer.A_log, layer.dt_bias),
        rule=partial(_rule, TritonGDNKernel()) if on_gpu else rule_by_torch,
    )


def state_bytes(layer: Any, pool: Any) -> int:
    """Bytes of what a layer carries behind a prefix.

    Args:
        pool: SGLang's `HybridReqToTokenPool`, whose states have the same shapes.
    """
    cache = pool.mamba2_layer_cache(layer.layer_id)
    return sum(each[0].nbytes for each in (cache.temporal, *cache.conv))


def _gates(a_log: Tensor, dt_bias: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    g, beta = fused_gdn_gating(a_log, a, b, dt_bias)
    return g[0], beta[0]


def _rule(
    kernel: TritonGDNKernel, inputs: RuleInputs, states: Tensor, stretch: Stretch, keep: bool
) -> Tensor:
    out, _, _ = kernel.extend(
        *(each[None] for each in inputs),
        ssm_states=states,
        cache_indices=stretch.slots,
        query_start_loc=stretch.bounds,
        inplace_update=keep,
    )
    values: Tensor = out[0]
    return values
