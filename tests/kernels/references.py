"""The kernels by their definitions, in float64."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from prefill_kernels.shared_prefix_attention.arguments import CachedKV, KeyParts, TilePlan
from torch import Tensor


def merge_states_reference(
    outs: Sequence[Tensor] | Tensor, lses: Sequence[Tensor] | Tensor
) -> tuple[Tensor, Tensor]:
    """`out` and `lse` of `merge_state` and `merge_parts`, both float64."""
    stacked = torch.stack([lse.double() for lse in lses])
    lse = torch.logsumexp(stacked, dim=0)
    weights = torch.exp(stacked - torch.where(lse.isneginf(), 0.0, lse)).unsqueeze(-1)
    parts = torch.stack([out.double() for out in outs])
    return torch.where(weights > 0, weights * parts, 0.0).sum(dim=0), lse


def label_readout_reference(
    hidden: Tensor,
    weight: Tensor,
    label_ids: Tensor,
    label_rows: Tensor,
    *,
    vocab_start: int = 0,
    scale: float = 1.0,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Label logits `[labels]` and log-sum-exp `[rows]` of `label_readout`, both float64."""
    logits = hidden.double() @ weight.double().T * scale
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    token = label_ids.long() - vocab_start
    held = (token >= 0) & (token < weight.shape[0])
    labels = logits[label_rows.long(), token.where(held, 0)]
    return labels.where(held, -torch.inf), torch.logsumexp(logits, dim=1)


def shared_prefix_attention_reference(
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
    """`out` `[Q, H, Dv]` and `lse` `[Q, H]`, float64; NaN for queries of no tile.

    Takes the arguments of `shared_prefix_attention`. Keys that no query of a tile sees may hold
    anything.
    """
    out = q.new_full((plan.parts, *q.shape[:2], v.shape[2]), torch.nan, dtype=torch.float64)
    lse = q.new_full((plan.parts, *q.shape[:2]), torch.nan, dtype=torch.float64)
    tokens = torch.arange(k.shape[0], device=k.device)
    for tile in plan.tiles.tolist():
        start, stop, fresh_start, fresh_stop, own_start, own_stop, *cached_at, behind, part = tile
        page_offset, cached_len = cached_at
        first = plan.segment_start[start:stop, None]
        last = plan.query_token[start:stop, None]
        is_fresh = (tokens >= fresh_start) & (tokens < fresh_stop)
        is_own = (tokens >= first) & (tokens <= last)
        is_own &= (tokens >= own_start) & (tokens < own_stop)
        visible = (is_fresh & (KeyParts.FRESH in parts)) | (is_own & (KeyParts.OWN in parts))
        # Positions in the prompt, [M, T]; where a token is not visible they mean nothing.
        prefix_len = cached_len + fresh_stop - fresh_start + behind
        position = torch.where(
            is_fresh, cached_len + tokens - fresh_start, prefix_len + tokens - first
        )
        keys, values = k.double(), v.double()
        if cached is not None and KeyParts.CACHED in parts:
            cached_k, cached_v = _cached_prefix(cached, page_offset, cached_len)
            keys, values = torch.cat([cached_k, keys]), torch.cat([cached_v, values])
            visible = torch.cat([visible.new_ones(stop - start, cached_len), visible], dim=1)
            before = torch.arange(cached_len, device=k.device).expand(stop - start, -1)
            position = torch.cat([before, position], dim=1)
        if window is not None:
            visible &= position >= prefix_len + last - first - window
        seen = visible.any(0)
        out[part, start:stop], lse[part, start:stop] = _attend(
            *(q[start:stop].double() * scale, keys[seen], values[seen], visible[:, seen]),
            *(soft_cap, None if part else sinks),
        )
    return (out[0], lse[0]) if plan.parts == 1 else merge_states_reference(out, lse)


def _cached_prefix(cached: CachedKV, page_offset: int, cached_len: int) -> tuple[Tensor, Tensor]:
    slots = cached.page_table[page_offset : page_offset + cached_len].long()
    return cached.k[slots].double(), cached.v[slots].double()


def _attend(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, soft_cap: float, sinks: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`q` `[M, H, D]`, `k` and `v` `[N, KH, ...]`, `visible` bool `[M, N]`."""
    group_size = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group_size, dim=1) for x in (k, v))
    scores = torch.einsum("mhd,nhd->mhn", q, k)
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    scores = scores.masked_fill(~visible[:, None], -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.double().expand(len(q), -1)[:, :, None]], dim=2)
        v = torch.cat([v, v.new_zeros(1, *v.shape[1:])])
    lse = scores.logsumexp(-1)
    # Where a query sees no key, all weights are 0.
    weights = (scores - lse[:, :, None].nan_to_num(neginf=0.0)).exp()
    return torch.einsum("mhn,nhd->mhd", weights, v), lse
