"""Attention of packed rows to their shared prefix and to themselves, in one launch."""

import math

import torch
from torch import Tensor

from prefill_kernels.errors import KernelArgumentError, require
from prefill_kernels.shared_prefix_attention.arguments import (
    CachedKV,
    KeyParts,
    TilePlan,
    check_inputs,
    check_outputs,
    check_scores,
    slots_of,
)
from prefill_kernels.shared_prefix_attention.configs import TileConfig, constexprs, tile_config
from prefill_kernels.shared_prefix_attention.kernel import attention_kernel


def block_tokens(group_size: int, head_dim: int, dtype: torch.dtype) -> int:
    """The largest, and best, `TilePlan.block_tokens` for `shared_prefix_attention`.

    Args:
        group_size: query heads that share a key head.
        head_dim: the larger of the two head sizes.
        dtype: of q.

    Raises:
        KernelArgumentError: the kernel does not support the sizes.
    """
    config = tile_config(head_dim, dtype.itemsize)
    return tile_tokens(config, group_size, head_dim, dtype)


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
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`softmax(q k^T * scale) v` over the keys that `plan` lets each query see.

    The tokens of a forward are `[fresh prefix of group 1][row][row]...[fresh prefix of group 2]
    [row]...`. Query i sees the cached prefix of its group, the fresh prefix of its group if it is
    in a row, and its own row or fresh prefix up to token `plan.query_token[i]`, which is itself
    unless attention is not causal.

    Legend: Q queries, T tokens of the forward, H query heads that share KH key heads, head sizes D
    and Dv: up to 256, in float32 up to 128. Any strides but for the last dimension, whose stride
    must be 1. Products of float32 are as exact as three TF32 products, sums are float32.

    Args:
        q: `[Q, H, D]`, bfloat16, float16 or float32, positions already encoded.
        k: `[T, KH, D]` in the dtype of q; H is a multiple of KH.
        v: `[T, KH, Dv]`, likewise.
        plan: the queries and their keys. Its contents, and those of the page table, are trusted.
        scale: factor of the scores before the softmax, > 0.
        cached: the cached prefixes; None: no tile may have one.
        parts: the parts of its keys that a query sees; results over disjoint parts are joined by
            `merge_state`.
        soft_cap: bound of the scaled scores, which become `soft_cap * tanh(score / soft_cap)`;
            0 for none.
        window: how many tokens before its own a query sees, counted by position in its prompt,
            where every row follows its prefix; None for all.
        sinks: `[H]`, any floating dtype: per head the score of a further key that every query
            sees, and whose value is 0 (Xiao et al. 2024). Pass them with one of several parts only.
        out: `[Q, H, Dv]` in the dtype of q to write to; may be q if D == Dv, and must not share
            memory with other arguments.
        lse: float32 `[Q, H]` to write to, any strides.

    Returns:
        `out` and `lse`, the natural-log sum of exponentials of the scores, sinks included. A query
        without any key has `out` 0 and as `lse` its sink or -inf. Queries of no tile are not
        written.

        K and V are read within the ranges of the plan's tiles only. All they hold there must be
        finite: a weight of 0 does not hide a NaN of another row in the same tile.

    Raises:
        KernelArgumentError: a shape, stride, dtype, device or number does not fit; nothing is
            launched and no check waits for the device.

    Source: prefix sharing as in Hydragen (Juravsky et al. 2024) and cascade attention in FlashInfer
    (Ye et al. 2025), with one online softmax over all parts instead of a merge.
    """
    config = tile_config(max(q.shape[-1], v.shape[-1]), q.dtype.itemsize)
    return launch(
        *(config, q, k, v, plan, scale, cached, parts),
        *(soft_cap, window, sinks, out, lse),
    )


def launch(
    config: TileConfig | None,
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
    out: Tensor | None,
    lse: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Check everything and run the kernel as `config` says."""
    check_inputs(q, k, v, plan, scale)
    check_scores(q, soft_cap, window, sinks)
    group_size, value_dim = q.shape[1] // k.shape[1], v.shape[2]
    limit = tile_tokens(config, group_size, max(q.shape[2], value_dim), q.dtype)
    remedy = f"it must be 1 to {limit}; ask block_tokens() before planning"
    require(1 <= plan.block_tokens <= limit, "plan.block_tokens", plan.block_tokens, remedy)
    assert config is not None
    out = q.new_empty(*q.shape[:2], value_dim) if out is None else out
    lse = q.new_empty(q.shape[:2], dtype=torch.float32) if lse is None else lse
    check_outputs(out, lse, q, value_dim)

    if cached is None:
        # Placeholders, never read.
        cached, (k_cache, v_cache) = CachedKV(k, v, plan.tiles, 1), (k, v)
        parts &= ~KeyParts.CACHED
    else:
        k_cache, v_cache = slots_of(cached, q, k, v)
    num_programs = plan.tiles.shape[0] * k.shape[1]
    if not num_programs:
        return out, lse
    tensors = (q, k, v, k_cache, v_cache)
    # tanh takes twice its argument; the last factor of a score takes it to base 2.
    scale *= 2 / soft_cap if soft_cap else math.log2(math.e)
    attention_kernel[(num_programs,)](
        *(argument for x in tensors for argument in (x, x.stride()[:2])),
        cached.page_table,
        plan.query_token,
        plan.segment_start,
        plan.tiles,
        out,
        out.stride()[:2],
        lse,
        lse.stride(),
        sinks,
        scale,
        scale * cached.k_scale,
        cached.v_scale,
        k.shape[1],
        CACHED=KeyParts.CACHED in parts,
        FRESH=KeyParts.FRESH in parts,
        OWN=KeyParts.OWN in parts,
        PAGE_SIZE=cached.page_size,
        SOFT_CAP=soft_cap * math.log2(math.e),
        WINDOW=-1 if window is None else window,
        **constexprs(config, group_size, q.shape[2], value_dim),
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return out, lse


def tile_tokens(
    config: TileConfig | None, group_size: int, head_dim: int, dtype: torch.dtype
) -> int:
    """`block_tokens` of a launch."""
    if config is None:
        largest = 128 if dtype == torch.float32 else 256
        remedy = f"head sizes go up to {largest} in {dtype}; use another attention for this model"
        raise KernelArgumentError("head_dim", head_dim, remedy)
    tokens = config.block_tokens(group_size)
    remedy = f"{config.query_rows} query heads can share a key head at most"
    require(tokens > 0, "group_size", group_size, remedy)
    return tokens
