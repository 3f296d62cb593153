"""Linear recurrences by torch, for many sequences at a time.

Each head has a state ``S``, of ``Dv x D`` numbers. For every token::

    S <- exp(g) * S
    S <- S + beta * (v - S k) k^T       with the delta rule
    S <- S + v k^T                      without
    out = S q + skip

Tokens are computed in chunks. Within one, the steps of the delta rule are a triangular system of
equations (Yang, Kautz, Hatamizadeh: Gated Delta Networks, arXiv 2412.06464, section 3.3); without
it, they are attention with decays (Dao, Gu: Transformers are SSMs, arXiv 2405.21060, section 6).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from sglang_prefill_ext.layout.recurrence_parts import CHUNK, Part


@dataclass(frozen=True, slots=True, eq=False)
class DevicePart:
    """A `Part` with its arrays on the device; `lists` are the last ones of `Part.host_arrays`."""

    part: Part
    bounds: Tensor
    slots: Tensor
    lists: Sequence[Tensor]

    @staticmethod
    def bound(part: Part, arrays: Iterator[Tensor]) -> DevicePart:
        """Take the arrays of `Part.host_arrays`, uploaded."""
        bounds, slots, *lists = islice(arrays, 5 if part.grid else 4)
        return DevicePart(part, bounds, slots, lists)

    def stages(self) -> Iterator[tuple[slice, Tensor, Tensor, bool]]:
        """See `Part.stages`; of each where its bounds are in `bounds`, these, its slots, and
        whether the states behind its sequences are kept."""
        for numbers, keep in self.part.stages:
            ends = slice(numbers.start, numbers.stop + 1)
            yield ends, self.bounds[ends], self.slots[numbers], keep


class RuleInputs(NamedTuple):
    """Inputs of a rule for T tokens, sequence after sequence.

    Attributes:
        q, k: ``[T, H, D]``.
        v: ``[T, HV, Dv]``; HV is a multiple of H, and heads of values share those of keys in order.
        g: ``[T, HV]``, logarithm (natural) of the decay, <= 0. If channels of keys decay by
            themselves, ``[T, HV, D]``.
        beta: ``[T, HV]``, how much of a token is written, from 0 to 1; None: no delta rule.
        skip: ``[T, HV, Dv]``, what goes past the state; None for nothing.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor | None = None
    skip: Tensor | None = None

    def part(self, tokens: slice) -> RuleInputs:
        """The inputs of some tokens."""
        q, k, v, g = (each[tokens] for each in self[:4] if each is not None)
        beta, skip = (None if each is None else each[tokens] for each in self[4:])
        return RuleInputs(q, k, v, g, beta, skip)


def carry(
    inputs: RuleInputs, states: Tensor, slots: Tensor, bounds: Tensor, out: Tensor, *, keep: bool
) -> None:
    """Carry states through sequences; write the outputs of their tokens.

    Args:
        states: ``[slots, HV, Dv, D]``.
        slots: integers ``[n]``: the state from which each sequence starts.
        bounds: integers ``[n + 1]``: where each sequence begins, then where the last one ends.
        out: ``[T, HV, Dv]``.
        keep: write the states behind the sequences; only the slot of sequences without tokens may
            then be there twice.
    """
    state, lens = states[slots].float(), bounds.diff()
    for start in range(0, int(lens.max()), CHUNK):
        going = torch.nonzero(lens > start)[:, 0]
        left = (lens[going] - start).clamp(max=CHUNK)
        place = torch.arange(int(left.max()), device=lens.device)
        is_there = place < left[:, None]
        tokens = torch.where(is_there, bounds[going, None] + start + place, 0)
        made, state[going] = _chunk(_chunk_of(inputs, tokens, is_there), state[going])
        places, made = tokens[is_there], made.movedim(1, 2)[is_there]
        made = made if inputs.skip is None else made + inputs.skip[places]
        out[places] = made.to(out.dtype)
    if keep:
        states[slots] = state.to(states.dtype)


def _chunk_of(inputs: RuleInputs, tokens: Tensor, is_there: Tensor) -> RuleInputs:
    """A chunk of each sequence, ``[n, HV, tokens, ...]``; zeros stand for tokens not there.

    With zeros as `k`, `v`, `g` and `beta` a token leaves the state as it is.
    """
    shared = inputs.v.shape[1] // inputs.q.shape[1]

    def taken(each: Tensor) -> Tensor:
        heads = each[tokens].float() * is_there.view(*is_there.shape, *[1] * (each.ndim - 1))
        return heads.movedim(2, 1)

    q, k = (taken(each).repeat_interleave(shared, dim=1) for each in inputs[:2])
    beta = None if inputs.beta is None else taken(inputs.beta)
    return RuleInputs(q, k, taken(inputs.v), taken(inputs.g), beta)


def _chunk(inputs: RuleInputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs of one chunk, ``[n, HV, tokens, Dv]``, and the states behind it."""
    q, k, v, g, beta, _ = inputs
    decay = g.cumsum(2)
    products = _products_by_channel if g.ndim == k.ndim else _products
    wide = decay if g.ndim == k.ndim else decay[..., None]
    new = v
    if beta is not None:
        written = beta[..., None] * k
        # Of each token, what those before it in the chunk have written is taken off.
        system = products(written, k, decay).tril(-1)
        wanted = beta[..., None] * v - wide.exp() * written @ state.transpose(-1, -2)
        new = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    seen = wide.exp() * q @ state.transpose(-1, -2)
    out = seen + products(q, k, decay) @ new
    left = (wide[..., -1:, :] - wide).exp() * k
    state = wide[..., -1:, :].exp() * state + new.transpose(-1, -2) @ left
    return out, state


def _products(queries: Tensor, keys: Tensor, decay: Tensor) -> Tensor:
    """Of each token with itself and those before it, after their decay.

    Args:
        decay: the logarithm from the beginning of the chunk on, ``[n, HV, tokens]``.

    Returns:
        ``[n, HV, tokens, tokens]``, 0 for later ones.
    """
    between = (decay[..., :, None] - decay[..., None, :]).tril().exp().tril()
    return queries @ keys.transpose(-1, -2) * between


def _products_by_channel(queries: Tensor, keys: Tensor, decay: Tensor) -> Tensor:
    """As `_products`, with a decay of each channel, ``[n, HV, tokens, D]``."""
    between = decay[..., :, None, :] - decay[..., None, :, :]
    later = torch.ones(between.shape[-3:-1], dtype=torch.bool, device=between.device).triu(1)
    between = between.masked_fill_(later[..., None], -torch.inf).exp_()
    return torch.einsum("...id,...jd,...ijd->...ij", queries, keys, between)
