"""The recurrent layers of a loaded model: which they are, and what they carry."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from sglang.srt.layers.attention.mamba.mamba import MambaMixer2
from sglang.srt.layers.radix_linear_attention import RadixLinearAttention
from sglang.srt.models.lfm2 import Lfm2ShortConv
from sglang.srt.models.lfm2_moe import Lfm2MoeShortConv
from torch import Tensor

from sglang_prefill_ext.border.model.recurrent import delta_rule, state_space
from sglang_prefill_ext.layout.recurrence_plan import Recurrence

_KINDS = (RadixLinearAttention, MambaMixer2, Lfm2ShortConv, Lfm2MoeShortConv)


def recurrent_layers(model: Any) -> list[Any]:
    """Return every layer that reads more of a prompt than a token, but not by attention."""
    return [each for each in model.modules() if isinstance(each, _KINDS)]


def recurrence_of(runner: Any) -> Recurrence | None:
    """Return what a model's recurrent layers have in common; None if it has none."""
    layers = recurrent_layers(runner.model)
    if not layers:
        return None
    width = max(_conv_weight(layer).shape[1] for layer in layers)
    if not any(map(_state_numbers, layers)):
        return Recurrence(width, carries=False)
    # As SGLang's own forwards, so that rounding is the same.
    chunk = getattr(runner.model_config.hf_text_config, "mamba_chunk_size", 64)
    has_grid = any(isinstance(layer, MambaMixer2) for layer in layers)
    return Recurrence(width, grid=chunk if has_grid else 0)


def state_bytes(model: Any, dtype: torch.dtype) -> int:
    """Bytes of what all layers carry behind a prefix, see `HeldStates`."""
    layers = recurrent_layers(model)
    inputs = sum(len(weight) * (weight.shape[1] - 1) for weight in map(_conv_weight, layers))
    states = sum(map(_state_numbers, layers))
    return int(inputs * dtype.itemsize + states * torch.float32.itemsize)


def _conv_weight(layer: Any) -> Tensor:
    """``[C, W]``."""
    if isinstance(layer, MambaMixer2):
        return state_space.conv_weight(layer)
    is_linear = isinstance(layer, RadixLinearAttention)
    weight: Tensor = layer.conv_weights if is_linear else layer.conv_weight
    return weight


def _state_numbers(layer: Any) -> int:
    if isinstance(layer, MambaMixer2):
        return prod(state_space.state_shape(layer))
    return prod(delta_rule.state_shape(layer)) if isinstance(layer, RadixLinearAttention) else 0
