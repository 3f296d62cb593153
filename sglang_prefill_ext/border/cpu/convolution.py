"""Causal convolutions on the CPU reference platform, where SGLang has only Triton for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv1d, silu


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
