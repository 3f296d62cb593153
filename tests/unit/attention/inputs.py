"""Inputs of one layer's attention, as views of poisoned memory."""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_prefill_ext.attention.inputs import HeldKV, LayerInputs
from sglang_prefill_ext.forward.layers import held_slots
from sglang_prefill_ext.layout.tokens import ForwardLayout
from tests.unit.attention.reference import PLAIN, Variant

CPU = torch.device("cpu")
FLOAT32_TOLERANCE = 2e-6
BFLOAT16_TOLERANCE = 2e-2

Inputs = tuple[LayerInputs, list[HeldKV | None]]


def _poisoned(count: int, *widths: int, dtype: torch.dtype, seed: int) -> tuple[Tensor, ...]:
    """Random `[count, width]` columns of one buffer that is NaN everywhere else."""
    fused = torch.full((count + 2, sum(widths) + 3), torch.nan, dtype=dtype)
    values = torch.randn(count, sum(widths), generator=torch.Generator().manual_seed(seed))
    fused[1 : count + 1, : sum(widths)] = values.to(dtype)
    return fused[1 : count + 1, : sum(widths)].split(widths, dim=1)


def random_inputs(
    forward: ForwardLayout,
    heads: tuple[int, int] = (4, 2),
    dims: tuple[int, int] = (16, 16),
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    variant: Variant = PLAIN,
) -> Inputs:
    """Views of a joint q, k, v as a model passes them, and held K/V."""
    (query_heads, key_heads), (dim, value_dim) = heads, dims
    widths = (query_heads * dim, key_heads * dim, key_heads * value_dim)
    q, k, v = _poisoned(forward.num_tokens, *widths, dtype=dtype, seed=seed)
    held: list[HeldKV | None] = []
    for index, span in enumerate(forward.groups):
        pair = _poisoned(span.held, *widths[1:], dtype=dtype, seed=seed + index + 1)
        held.append(_split_heads(key_heads, *pair) if span.held else None)
    q, (k, v) = q.unflatten(1, (query_heads, dim)), _split_heads(key_heads, k, v)
    return LayerInputs(q, k, v, dim**-0.5, *variant), held


def in_slots(held: list[HeldKV | None]) -> tuple[HeldKV | None, Tensor | None]:
    """The same K/V in shuffled slots of a pool with NaN between them, and their page table."""
    pairs = [pair for pair in held if pair is not None]
    if not pairs:
        return None, None
    lens = [len(keys) for keys, _ in pairs]
    order = torch.randperm(2 * sum(lens), generator=torch.Generator().manual_seed(9))
    slots = order[: sum(lens)]
    pool = tuple(x.new_full((len(order), *x.shape[1:]), torch.nan) for x in pairs[0])
    for part, (keys, values) in zip(slots.split(lens), pairs, strict=True):
        pool[0][part], pool[1][part] = keys, values
    table = held_slots([None, *slots.split(lens)])
    assert table is not None
    return (pool[0], pool[1]), table.to(pool[0].device, torch.int32)


def _split_heads(key_heads: int, k: Tensor, v: Tensor) -> HeldKV:
    return k.unflatten(1, (key_heads, -1)), v.unflatten(1, (key_heads, -1))
