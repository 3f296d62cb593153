"""Recurrent layers over SGLang's pool of states, on the CPU reference platform."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from sglang_prefill_ext.border.cpu.convolution import over_pool
from sglang_prefill_ext.recurrent.layers import RecurrentInputs
from sglang_prefill_ext.recurrent.rule import carry


def carried_over_pool(
    inputs: RecurrentInputs, cache: Any, slots: Tensor, lens: list[int], begins: Tensor
) -> Tensor:
    """Carry the states of a layer with a rule through a batch, ``[T, HV, Dv]``.

    Args:
        cache: the layer's part of the pool, which is written.
        slots, lens, begins: see `over_pool`.
    """
    rule = inputs.rule
    assert rule is not None
    at = (cache.conv[0], slots, lens, begins)
    convolved = over_pool(inputs.mixed, *at, inputs.weight, inputs.bias, activates=True)
    outputs = torch.split(convolved, rule.sizes, dim=1)
    tokens = rule.inputs(rule.torch, outputs, inputs.gates)
    cache.temporal[slots[begins]] = 0
    bounds = torch.tensor([0, *accumulate(lens)])
    out = torch.empty_like(tokens.v)
    carry(tokens, cache.temporal, slots, bounds, out, keep=True)
    return out.to(inputs.mixed.dtype)
