"""Convolutions and recurrent layers over SGLang's pool of states, on the CPU reference platform.

SGLang has only Triton for them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv1d, silu

from sglang_prefill_ext.border.model.recurrent.state_space import mixer_inputs, mixer_output
from sglang_prefill_ext.recurrent.layers import RecurrentInputs
from sglang_prefill_ext.recurrent.rule import carry


def over_pool(
    inputs: Tensor,
    pool: Tensor,
    slots: Tensor,
    lens: list[int],
    begins: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    activates: bool,
) -> Tensor:
    """Convolve sequences behind their tails in a pool, which is written; ``[T, C]``.

    Args:
        inputs: ``[T, C]``, sequence after sequence.
        pool: ``[slots, C, W - 1]``; slots: integers ``[n]``.
        lens: tokens of each sequence.
        begins: bool ``[n]``, whether no token of the sequence was computed before.
        weight: ``[C, W]``; bias: ``[C]``.
        activates: whether SiLU is applied.
    """
    tails = pool[slots].to(inputs.dtype).masked_fill(begins[:, None, None], 0)
    outputs, left = [], []
    for sequence, tail in zip(torch.split(inputs, lens), tails, strict=True):
        seen = torch.cat([tail, sequence.T], dim=1)
        made = conv1d(seen[None], weight[:, None].to(seen.dtype), bias, groups=len(seen))
        outputs.append(made[0].T)
        left.append(seen[:, -tails.shape[2] :])
    pool[slots] = torch.stack(left).to(pool.dtype)
    out = torch.cat(outputs)
    return silu(out) if activates else out


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


def of_sequences(
    _original: Callable[..., Tensor],
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    query_start_loc: Any = None,
    cache_indices: Any = None,
    has_initial_state: Any = None,
    conv_states: Any = None,
    activation: str | None = "silu",
    *_padding: int,
    **_flags: Any,
) -> Tensor:
    """AROUND `causal_conv1d_fn`; `x` and the result are ``[C, T]``."""
    lens, activates = query_start_loc.diff().tolist(), activation is not None
    at = (conv_states, cache_indices, lens, ~has_initial_state)
    return over_pool(x.T, *at, weight, bias, activates=activates).T


def of_tokens(
    _original: Callable[..., Tensor],
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    _cache_seqlens: object = None,
    conv_state_indices: Any = None,
    *_padding: int,
    **_flags: Any,
) -> Tensor:
    """AROUND `causal_conv1d_update`: one token of each sequence, ``[n, C]``."""
    begins = torch.zeros(len(x), dtype=torch.bool)
    at = (conv_state, conv_state_indices, [1] * len(x), begins)
    return over_pool(x, *at, weight, bias, activates=activation is not None)


def mixed(
    _original: Callable[..., Any],
    mixer: Any,
    *,
    hidden_states: Tensor,
    layer_cache: Any,
    metadata: Any,
    output: Tensor | None = None,
    mup_vector: Tensor | None = None,
    **_flags: Any,
) -> tuple[Tensor, None, None]:
    """AROUND `MambaMixer2.forward`: carry the states in SGLang's pool through a batch."""
    gate, inputs = mixer_inputs(mixer, hidden_states, mup_vector)
    lens, begins = _sequences(metadata)
    carried = carried_over_pool(inputs, layer_cache, metadata.mamba_cache_indices, lens, begins)
    return mixer_output(mixer, carried, gate, output), None, None


def _sequences(metadata: Any) -> tuple[list[int], Tensor]:
    """Tokens of each sequence of a batch, and whether it begins with this batch."""
    generating = [1] * metadata.num_decodes
    begins = torch.zeros(len(generating), dtype=torch.bool)
    of_prefill = metadata.mixed_metadata
    if of_prefill is None:
        return generating, begins
    goes_on = of_prefill.has_initial_states[: metadata.num_prefills]
    return [*of_prefill.extend_seq_lens_cpu, *generating], torch.cat([~goes_on, begins])
