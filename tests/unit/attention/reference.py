"""Packed attention by definition: one token after another, in float64."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sglang_prefill_ext.attention.inputs import Held, LayerInputs
from sglang_prefill_ext.layout.tokens import ForwardLayout


class Variant(NamedTuple):
    """The options of a layer, see `LayerInputs`."""

    soft_cap: float = 0.0
    window: int | None = None
    sinks: Tensor | None = None
    chunk: int = 0


PLAIN = Variant()


def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, variant: Variant = PLAIN
) -> tuple[Tensor, Tensor]:
    """One query `[H, D]` to keys `[K, KH, D]`, the last its own: `out` `[H, Dv]` and `lse` `[H]`,
    float64."""
    position, first = len(k) - 1, 0
    if variant.window is not None:
        first = max(first, position - variant.window)
    if variant.chunk:
        first = max(first, position // variant.chunk * variant.chunk)
    of_heads = q.shape[0] // k.shape[1]
    keys, values = (x[first:].double().repeat_interleave(of_heads, 1) for x in (k, v))
    scores = (keys * q.double()).sum(-1) * scale
    if variant.soft_cap:
        scores = variant.soft_cap * torch.tanh(scores / variant.soft_cap)
    if variant.sinks is not None:
        scores = torch.cat([scores, variant.sinks[None].double()])
        values = torch.cat([values, torch.zeros_like(values[:1])])
    return (scores.softmax(0)[..., None] * values).sum(0), scores.logsumexp(0)


def attention_by_definition(layout: ForwardLayout, inputs: LayerInputs, held: Held) -> Tensor:
    """`[T, H, Dv]` float64, of the arguments of `DenseCalls.forward`."""
    q, k, v = (each.double() for each in (inputs.q, inputs.k, inputs.v))
    out = []
    variant = Variant(inputs.soft_cap, inputs.window, inputs.sinks, inputs.chunk)
    token = 0
    for span, pair in zip(layout.groups, held, strict=True):
        seen_k, seen_v = (each.double() for each in pair) if pair else (k[:0], v[:0])
        for segment, length in enumerate([span.fresh, *span.suffix_lens.tolist()]):
            own_k, own_v = k[token : token + length], v[token : token + length]
            for i in range(length):
                stop = i + 1 if layout.causal else length
                keys = torch.cat([seen_k, own_k[:stop]])
                values = torch.cat([seen_v, own_v[:stop]])
                out.append(attend(q[token + i], keys, values, inputs.scale, variant)[0])
            if segment == 0:
                seen_k, seen_v = torch.cat([seen_k, own_k]), torch.cat([seen_v, own_v])
            token += length
    return torch.stack(out)
