"""Attention of packed rows to their shared prefix and to themselves, in one launch."""

import math
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from prefill_kernels.errors import KernelArgumentError, require
from prefill_kernels.merge_state import merge_parts
from prefill_kernels.prepared import PreparedLaunches, look, place
from prefill_kernels.shared_prefix_attention.arguments import (
    CachedKV,
    KeyParts,
    TilePlan,
    check_cached,
    check_inputs,
    check_scores,
)
from prefill_kernels.shared_prefix_attention.configs import (
    HOPPER,
    TileConfig,
    constexprs,
    tile_config,
)
from prefill_kernels.shared_prefix_attention.kernel import attention_kernel


class _Launch(NamedTuple):
    """What all launches with the same shapes have in common; strides in elements."""

    grid: tuple[int]
    tensor_strides: tuple[tuple[int, ...], ...]
    """Of q, k, v and the cache: from token to token and from head to head."""
    out_strides: tuple[int, ...]
    lse_strides: tuple[int, ...]
    """From part to part, from token to token and from head to head."""
    scale: float
    """The `scale` argument of the kernel."""
    key_heads: int
    out_shape: tuple[int, int, int]
    constants: dict[str, Any]


_LAUNCHES = PreparedLaunches[_Launch]()


def block_tokens(
    group_size: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
    parts: KeyParts = KeyParts.ALL,
) -> int:
    """The largest, and best, `TilePlan.block_tokens` for `shared_prefix_attention`.

    Args:
        group_size: query heads that share a key head.
        head_dim: the larger of the two head sizes.
        dtype, device: of q.
        parts: the parts of their keys that the queries see.

    Raises:
        KernelArgumentError: the kernel does not support the sizes.
    """
    return _tile_config(group_size, head_dim, dtype, device, parts).block_tokens(group_size)


def shared_prefix_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: TilePlan,
    scale: float,
    *,
    cached: CachedKV | None = None,
    parts: KeyParts = KeyParts.ALL,
    soft_cap: float = 0.0,
    window: int | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`softmax(q k^T * scale) v` over the keys that `plan` lets each query see.

    The tokens of a forward are `[fresh prefix of group 1][row][row]...[fresh prefix of group 2]
    [row]...`. Query i sees the cached prefix of its group, the fresh prefix of its group if it is
    in a row, and its own row or fresh prefix up to token `plan.query_token[i]`. With causal
    attention this token is the query itself.

    Legend: Q queries, T tokens of the forward, H query heads that share KH key heads, head sizes D
    and Dv: up to 512, in float32 up to 128. Any strides but for the last dimension, whose stride
    must be 1. Products of float32 are as exact as three TF32 products, sums are float32.

    Args:
        q: `[Q, H, D]`, bfloat16, float16 or float32, positions already encoded.
        k: `[T, KH, D]` in the dtype of q; H is a multiple of KH.
        v: `[T, KH, Dv]` in the dtype of q.
        plan: the queries and their keys. Its contents, and those of the page table, are trusted.
        scale: factor of the scores before the softmax, > 0.
        cached: the cached prefixes; None: no tile may have one.
        parts: the parts of its keys that a query sees; results over disjoint parts are joined by
            `merge_state`. Over the prefix alone all queries of a group are one dense block, for
            which there are larger tiles (see `block_tokens`).
        soft_cap: bound of the scaled scores, which become `soft_cap * tanh(score / soft_cap)`;
            0 for none.
        window: how many tokens before its own a query sees, counted by position in its prompt,
            where every row follows its prefix; None for all.
        sinks: `[H]`, any floating dtype: per head the score of one more key that every query sees,
            and whose value is 0 (Xiao et al. 2024). If results over several parts are joined, pass
            them in one of the calls only.

    Returns:
        `out` `[Q, H, Dv]` in the dtype of q and `lse` float32 `[Q, H]`, the natural-log sum of
        exponentials of the scores, sinks included. A query without any key has `out` 0 and as `lse`
        its sink or -inf. The values of queries of no tile are undefined.

        K and V are read within the ranges of the plan's tiles only. All their numbers there must be
        finite: a weight of 0 does not hide a NaN of another row in the same tile.

    Raises:
        KernelArgumentError: a shape, stride, dtype, device or number does not fit; nothing is
            launched and no check waits for the device.

    Source: prefix sharing as in Hydragen (Juravsky et al. 2024) and cascade attention in FlashInfer
    (Ye et al. 2025), with one online softmax over all parts instead of a merge.
    """
    key = (
        *(place(q), look(q), look(k), look(v), plan.look, scale, parts.value),
        *(None if cached is None else cached.look(), soft_cap, window, look(sinks)),
    )
    prepared = _LAUNCHES.get(key)
    if prepared is None:
        arguments = (q, k, v, plan, scale, cached, parts, soft_cap, window, sinks)
        prepared = _LAUNCHES.keep(key, _prepare(*arguments))
    out, lse = _empty_results(q, plan.parts, prepared.out_shape)
    # Placeholders, never read, where there is no cache.
    k_cache, v_cache, table = (
        (k, v, plan.tiles) if cached is None else (cached.k, cached.v, cached.page_table)
    )
    q_strides, k_strides, v_strides, k_cache_strides, v_cache_strides = prepared.tensor_strides
    if prepared.grid[0]:
        attention_kernel[prepared.grid](
            *(q, q_strides, k, k_strides, v, v_strides),
            *(k_cache, k_cache_strides, v_cache, v_cache_strides),
            *(table, plan.query_token, plan.segment_start, plan.tiles),
            *(out, prepared.out_strides, lse, prepared.lse_strides, sinks),
            *(prepared.scale, prepared.key_heads),
            **prepared.constants,
        )
    return merge_parts(out, lse) if plan.parts > 1 else (out, lse)


def _empty_results(q: Tensor, parts: int, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Allocate `out` and `lse` of that shape or, of several parts, `parts` times that shape.

    The distance between parts is a multiple of 16 elements for any number of queries: for other
    distances Triton would compile the kernel again.
    """
    if parts == 1:
        return q.new_empty(shape), q.new_empty(shape[:2], dtype=torch.float32)
    queries, heads, width = shape
    padded = -(-queries // 16) * 16
    out = q.new_empty(parts, padded, heads, width)[:, :queries]
    return out, q.new_empty(parts, padded, heads, dtype=torch.float32)[:, :queries]


def _prepare(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: TilePlan,
    scale: float,
    cached: CachedKV | None,
    parts: KeyParts,
    soft_cap: float,
    window: int | None,
    sinks: Tensor | None,
) -> _Launch:
    """Check everything, and compute what does not depend on the tensors' contents."""
    check_inputs(q, k, v, plan, scale)
    check_scores(q, soft_cap, window, sinks)
    group_size, head_dim, value_dim = q.shape[1] // k.shape[1], q.shape[2], v.shape[2]
    config = _tile_config(group_size, max(head_dim, value_dim), q.dtype, q.device, parts)
    limit = config.block_tokens(group_size)
    remedy = f"it must be 1 to {limit}; ask block_tokens() before planning"
    require(1 <= plan.block_tokens <= limit, "plan.block_tokens", plan.block_tokens, remedy)
    if cached is None:
        tensors = (q, k, v, k, v)
        parts &= ~KeyParts.CACHED
    else:
        check_cached(cached, q, k, v)
        tensors = (q, k, v, cached.k, cached.v)
    # The kernel computes tanh(x) from 2 * x; without a cap, the scale also converts to base 2.
    scale *= 2 / soft_cap if soft_cap else math.log2(math.e)
    out_shape = (q.shape[0], q.shape[1], value_dim)
    out, lse = _empty_results(q.new_empty(0, device="meta"), plan.parts, out_shape)
    no_parts = (0,) * (plan.parts == 1)
    return _Launch(
        grid=(plan.tiles.shape[0] * k.shape[1],),
        tensor_strides=tuple(x.stride()[:2] for x in tensors),
        out_strides=(*no_parts, *out.stride()[:-1]),
        lse_strides=(*no_parts, *lse.stride()),
        scale=scale,
        key_heads=k.shape[1],
        out_shape=out_shape,
        constants={
            "CACHED": KeyParts.CACHED in parts,
            "FRESH": KeyParts.FRESH in parts,
            "OWN": KeyParts.OWN in parts,
            "SOFT_CAP": soft_cap * math.log2(math.e),
            "WINDOW": -1 if window is None else window,
            **constexprs(config, group_size, head_dim, value_dim),
            "num_warps": config.num_warps,
            "num_stages": config.num_stages,
        },
    )


def _tile_config(
    group_size: int, head_dim: int, dtype: torch.dtype, device: torch.device, parts: KeyParts
) -> TileConfig:
    """Launch parameters, see `block_tokens`; raises if the sizes are not supported."""
    prefix_alone = parts == KeyParts.PREFIX
    config = tile_config(head_dim, dtype.itemsize, _architecture(device), prefix_alone=prefix_alone)
    if config is None:
        largest = 128 if dtype == torch.float32 else 512
        remedy = f"head sizes go up to {largest} in {dtype}; use another attention for this model"
        raise KernelArgumentError("head_dim", head_dim, remedy)
    remedy = f"{config.query_rows} query heads can share a key head at most"
    require(config.block_tokens(group_size) > 0, "group_size", group_size, remedy)
    return config


@cache
def _architecture(device: torch.device) -> int:
    """Major compute capability; the interpreter runs what Hopper does."""
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else HOPPER
