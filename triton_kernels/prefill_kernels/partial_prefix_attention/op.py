"""Attention of packed rows to their shared prefix only."""

from functools import cache

import torch
from torch import Tensor

from prefill_kernels.partial_prefix_attention.configs import tile_config
from prefill_kernels.shared_prefix_attention.arguments import CachedKV, KeyParts, TilePlan
from prefill_kernels.shared_prefix_attention.configs import TileConfig
from prefill_kernels.shared_prefix_attention.op import launch, tile_tokens

HOPPER = 9


def block_tokens(group_size: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> int:
    """The largest, and best, `TilePlan.block_tokens` for `partial_prefix_attention`.

    Args:
        group_size: query heads that share a key head.
        head_dim: the larger of the two head sizes.
        dtype: of q.
        device: of q.

    Raises:
        KernelArgumentError: the kernel does not support the sizes.
    """
    config = tile_config(head_dim, dtype.itemsize, _architecture(device))
    return tile_tokens(config, group_size, head_dim, dtype)


def partial_prefix_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: TilePlan,
    scale: float,
    *,
    cached: CachedKV | None = None,
    soft_cap: float = 0.0,
    window: int | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`shared_prefix_attention` with `parts=KeyParts.PREFIX`, launched with larger tiles.

    All queries of a group are one dense block against one K/V, the cached prefix and then the fresh
    one. `merge_state` joins the result with attention over the rest,
    `shared_prefix_attention(..., parts=KeyParts.OWN)` or any that returns a log-sum-exp.

    Arguments, results and errors are those of `shared_prefix_attention`; `plan.block_tokens` may be
    as large as this package's `block_tokens` says. A query without a prefix, or whose window ends
    behind it, has `out` 0 and `lse` -inf. There are no sinks: they belong to the other half.
    """
    return launch(
        *(_tile_config, q, k, v, plan, scale, cached, KeyParts.PREFIX),
        *(soft_cap, window, None, out, lse),
    )


def _tile_config(head_dim: int, q: Tensor) -> TileConfig | None:
    return tile_config(head_dim, q.dtype.itemsize, _architecture(q.device))


@cache
def _architecture(device: torch.device) -> int:
    """Major compute capability; the interpreter runs what Hopper does."""
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else HOPPER
