"""Packed forwards for the attention kernels, and how their results are compared."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from prefill_kernels.shared_prefix_attention import CachedKV, KeyParts, TilePlan
from torch import Tensor

from sglang_prefill_ext.layout.kernel_plan import KernelPlan, plan_tiles
from sglang_prefill_ext.layout.tokens import ForwardLayout
from tests.kernels.references import shared_prefix_attention_reference

TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
UNUSED_SLOTS = 3


@dataclass(frozen=True)
class Sizes:
    """Sizes of the compiled kernels; the defaults are small."""

    heads: int = 4
    key_heads: int = 2
    head_dim: int = 16
    value_dim: int = 16
    block_tokens: int = 8
    programs: int = 0


@dataclass(frozen=True)
class Case:
    """Arguments of the kernels, with NaN in all places that they must not read."""

    q: Tensor
    k: Tensor
    v: Tensor
    plan: TilePlan
    cached: CachedKV | None
    scale: float = field(default=0.3)
    scores: dict[str, Any] = field(default_factory=dict)
    """`soft_cap`, `window` and `sinks`, where they are given."""

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor, TilePlan, float]:
        return self.q, self.k, self.v, self.plan, self.scale

    def replace(self, **changes: Any) -> Case:
        return replace(self, **changes)

    def check(
        self, result: tuple[Tensor, Tensor], parts: KeyParts = KeyParts.ALL, factor: float = 1.0
    ) -> None:
        """Compare with the reference; `factor` widens the tolerance."""
        out, lse = result
        assert out.dtype == self.q.dtype
        assert lse.dtype == torch.float32
        expected_out, expected_lse = shared_prefix_attention_reference(
            *self.arguments, cached=self.cached, parts=parts, **self.scores
        )
        tolerance = factor * TOLERANCE[self.q.dtype]
        close = {"rtol": tolerance, "atol": tolerance, "equal_nan": True}
        torch.testing.assert_close(out.double(), expected_out, **close)
        torch.testing.assert_close(lse.double(), expected_lse, **close)


def make_case(
    layout: ForwardLayout,
    device: torch.device,
    dtype: torch.dtype,
    queries: list[int] | None = None,
    seed: int = 0,
    **sizes: Any,
) -> Case:
    """A forward of random numbers; q, k and v are slices of one tensor, as after a QKV product."""
    size = Sizes(**sizes)
    random = torch.Generator().manual_seed(seed)
    index = None if queries is None else np.array(queries, dtype=np.int64)
    host = plan_tiles(
        layout,
        block_tokens=size.block_tokens,
        queries=index,
        programs=size.programs,
    )
    widths = [
        size.heads * size.head_dim,
        size.key_heads * size.head_dim,
        size.key_heads * size.value_dim,
    ]
    fused = torch.randn(layout.num_tokens, sum(widths), generator=random)
    q, k, v = fused.to(device, dtype).split(widths, dim=1)
    q = q if index is None else q[torch.from_numpy(index).to(device)]
    unread = ~torch.from_numpy(_read_tokens(host, layout.num_tokens)).to(device)
    k[unread] = v[unread] = torch.nan
    cached = None
    held = sum(group.held for group in layout.groups)
    if held:
        cached = _cache(held, size, random, device, dtype)
    return Case(
        q.unflatten(1, (size.heads, -1)),
        k.unflatten(1, (size.key_heads, -1)),
        v.unflatten(1, (size.key_heads, -1)),
        to_device(host, device),
        cached,
    )


def to_device(plan: KernelPlan, device: torch.device) -> TilePlan:
    arrays = (plan.query_token, plan.segment_start, plan.tiles)
    tensors = (torch.from_numpy(array).to(device) for array in arrays)
    return TilePlan(*tensors, block_tokens=plan.block_tokens, parts=plan.parts)


def _read_tokens(plan: KernelPlan, num_tokens: int) -> np.ndarray:
    """Bool `[T]`: whether a tile may read a token's K and V."""
    read = np.zeros(num_tokens, dtype=np.bool_)
    for fresh_start, fresh_stop, own_start, own_stop in plan.tiles[:, 2:6]:
        read[fresh_start:fresh_stop] = read[own_start:own_stop] = True
    return read


def _cache(
    held: int, size: Sizes, random: torch.Generator, device: torch.device, dtype: torch.dtype
) -> CachedKV:
    """Shuffled slots of K/V; NaN in unused ones."""
    table = torch.randperm(held + UNUSED_SLOTS, generator=random)
    caches = []
    for width in (size.head_dim, size.value_dim):
        cache = torch.randn((len(table), size.key_heads, width), generator=random)
        cache[table[held:]] = torch.nan
        caches.append(cache.to(device, dtype))
    return CachedKV(*caches, table[:held].to(device, torch.int32))
