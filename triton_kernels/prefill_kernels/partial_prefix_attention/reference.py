"""`partial_prefix_attention` by definition, in float64."""

from torch import Tensor

from prefill_kernels.shared_prefix_attention.arguments import CachedKV, KeyParts, TilePlan
from prefill_kernels.shared_prefix_attention.reference import shared_prefix_attention_reference


def partial_prefix_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: TilePlan,
    scale: float,
    *,
    cached: CachedKV | None = None,
    soft_cap: float = 0.0,
    window: int | None = None,
) -> tuple[Tensor, Tensor]:
    """`out` `[Q, H, Dv]` and `lse` `[Q, H]`, float64; NaN for queries of no tile."""
    return shared_prefix_attention_reference(
        *(q, k, v, plan, scale),
        cached=cached,
        parts=KeyParts.PREFIX,
        soft_cap=soft_cap,
        window=window,
    )
