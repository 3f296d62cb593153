"""The gated delta rule by torch, for many sequences at a time.

Yang, Kautz, Hatamizadeh: Gated Delta Networks, arXiv 2412.06464. Each head has a state ``S``, of
``Dv x D`` numbers. For every token::

    S <- exp(g) * S
    S <- S + beta * (v - S k) k^T
    out = S q

Queries and keys are scaled to length 1 before, and queries then by ``1 / sqrt(D)``. Tokens are
computed in chunks, within which the steps are a triangular system of equations (section 3.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus
from torch.nn.utils.rnn import pad_sequence

CHUNK = 64
_EPSILON = 1e-6
"""Added to the squared length of queries and keys, as in SGLang's and Hugging Face's code."""


class RuleInputs(NamedTuple):
    """Inputs of the rule for T tokens, sequence after sequence.

    Attributes:
        q, k: ``[T, H, D]``, of any length.
        v: ``[T, HV, Dv]``; HV is a multiple of H, and heads of values share those of keys in order.
        g: ``[T, HV]``, logarithm (natural) of the decay, <= 0.
        beta: ``[T, HV]``, how much of a token is written, from 0 to 1.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor

    def part(self, tokens: slice) -> RuleInputs:
        """The inputs of some tokens."""
        return RuleInputs(*(each[tokens] for each in self))


def gates(a_log: Tensor, dt_bias: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return `g` and `beta` of `RuleInputs`, float32.

    Args:
        a_log, dt_bias: weights of the layer, ``[HV]``.
        a, b: its projections, ``[T, HV]``.
    """
    decay = -a_log.float().exp() * softplus(a.float() + dt_bias.float())
    return decay, b.float().sigmoid()


def delta_rule(
    inputs: RuleInputs, states: Tensor, slots: Tensor, lens: Sequence[int], *, keep: bool
) -> Tensor:
    """Carry states through sequences; return the outputs, ``[T, HV, Dv]`` in the dtype of `v`.

    Args:
        states: ``[slots, HV, Dv, D]``.
        slots: integers ``[n]``: the state from which each sequence starts.
        lens: tokens of each sequence.
        keep: write the states behind the sequences; no slot may then be there twice.
    """
    padded = [_padded(each, lens) for each in inputs]
    q, k, v, g, beta = (each.float().movedim(2, 1) for each in padded)  # [n, heads, longest, ...]
    shared = v.shape[1] // q.shape[1]
    q, k = (_unit(each).repeat_interleave(shared, dim=1) for each in (q, k))
    q = q * q.shape[-1] ** -0.5
    state = states[slots].float()
    outputs = []
    for start in range(0, q.shape[2], CHUNK):
        chunk = RuleInputs(*(each[:, :, start : start + CHUNK] for each in (q, k, v, g, beta)))
        out, state = _chunk(chunk, state)
        outputs.append(out)
    if keep:
        states[slots] = state.to(states.dtype)
    out = torch.cat(outputs, dim=2).movedim(1, 2)
    return torch.cat([row[:length] for row, length in zip(out, lens, strict=True)]).to(
        inputs.v.dtype
    )


def _padded(tokens: Tensor, lens: Sequence[int]) -> Tensor:
    """``[n, longest, ...]``. Zeros as `k`, `v`, `g` and `beta` leave a state as it is."""
    return pad_sequence(list(torch.split(tokens, list(lens))), batch_first=True)


def _unit(vectors: Tensor) -> Tensor:
    return vectors * torch.rsqrt((vectors * vectors).sum(-1, keepdim=True) + _EPSILON)


def _chunk(inputs: RuleInputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs of one chunk, ``[n, HV, tokens, Dv]``, and the states behind it.

    Args:
        inputs: ``[n, HV, tokens, ...]``, with queries and keys as the rule wants them.
    """
    q, k, v, g, beta = inputs
    decay = g.cumsum(-1)
    between = (decay[..., :, None] - decay[..., None, :]).tril().exp().tril()
    written = beta[..., None] * k
    # Of each token, what those before it in the chunk have written is taken off.
    system = (written @ k.transpose(-1, -2) * between).tril(-1)
    wanted = beta[..., None] * v - decay.exp()[..., None] * written @ state.transpose(-1, -2)
    new = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    seen = decay.exp()[..., None] * q @ state.transpose(-1, -2)
    out = seen + (q @ k.transpose(-1, -2) * between) @ new
    left = (decay[..., -1:] - decay).exp()[..., None] * k
    state = decay[..., -1].exp()[..., None, None] * state + new.transpose(-1, -2) @ left
    return out, state
