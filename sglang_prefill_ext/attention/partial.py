"""Dense attention calls over a part of the keys, with their log-sum-exp, and over prefixes behind.

Shapes: B sequences of M queries and K keys; H query heads that share KH key heads (H % KH == 0);
head sizes D (query, key) and Dv (value).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from sglang_prefill_ext.attention.inputs import Held, LayerInputs
from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.layout.dense_plan import PrefixSpan

SCORE_BYTES = 64 << 20
"""Bound of the float32 score matrix of the matmul path, unless one query alone needs more."""


def partial_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    *,
    mask: Tensor | None = None,
    is_causal: bool = False,
    soft_cap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """`softmax(q k^T * scale + mask) v` and the log-sum-exp of its scores.

    Args:
        q: `[B, M, H, D]`, any strides.
        k: `[B, K, KH, D]`, any strides.
        v: `[B, K, KH, Dv]`, any strides.
        scale: factor of the scores before the softmax.
        mask: float32 `[B or 1, M, K]`, added to the scores: 0 or -inf; no row may be all -inf.
        is_causal: query i sees keys 0..i; excludes `mask` and needs M == K.
        soft_cap: scaled scores become `soft_cap * tanh(score / soft_cap)`; 0: they stay.

    Returns:
        `out` `[B, M, H, Dv]` in the dtype of `q` and `lse` `[B, M, H]` float32, natural log.

    Raises:
        PackingError: H is not a multiple of KH.
    """
    if q.shape[2] % k.shape[2]:
        raise PackingError(
            f"{q.shape[2]} query heads cannot share {k.shape[2]} key heads evenly; shard both alike"
        )
    if q.device.type == "cpu" and q.shape[3] == v.shape[3] and not soft_cap:
        return _flash_cpu(q, k, v, scale, mask, is_causal)
    return _matmul(q, k, v, scale, mask, is_causal, soft_cap)


def finish_dense(
    spans: Iterable[PrefixSpan], out: Tensor, lse: Tensor, inputs: LayerInputs, held: Held
) -> Tensor:
    """Merge the prefixes, and then the sinks, into the attention of queries, in place.

    Args:
        out: `[Q, H, Dv]`: attention of the queries over the keys of their own calls; becomes that
            over all keys.
        lse: `[Q, H]` float32: its log-sum-exp; becomes that of all keys without the sinks.

    Returns:
        `out`.
    """
    for span in spans:
        keys, values = _prefix_of(span, inputs, held)
        queries = span.queries
        part_out, part_lse = partial_attention(
            *(inputs.q[queries][None], keys[None], values[None], inputs.scale),
            soft_cap=inputs.soft_cap,
        )
        merged = merge_states(out[queries], lse[queries], part_out[0], part_lse[0])
        out[queries], lse[queries] = merged
    if inputs.sinks is not None:
        # A sink is one more key of its head, of the whole and not of each part; its value is 0
        # (Xiao et al. 2024, as gpt-oss has it).
        out.mul_(torch.sigmoid(lse - inputs.sinks.float()).unsqueeze(-1))
    return out


def merge_states(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
) -> tuple[Tensor, Tensor]:
    """As `prefill_kernels.merge_state`, for any strides and floating dtypes."""
    lse = torch.logaddexp(lse_a, lse_b)
    # exp(lse_b) / (exp(lse_a) + exp(lse_b)); NaN where both sides are empty or an lse is NaN. NaN
    # compares false, so neither side is used there. Where both sides are empty the weight becomes
    # 0 below; where an lse is NaN it stays NaN, and makes the result NaN.
    weight_b = torch.sigmoid(lse_b - lse_a).unsqueeze(-1)
    used_a = torch.where(weight_b < 1, out_a.float(), 0.0)
    used_b = torch.where(weight_b > 0, out_b.float(), 0.0)
    weight_b.masked_fill_(lse.isneginf().unsqueeze(-1), 0.0)
    return torch.lerp(used_a, used_b, weight_b).to(out_a.dtype), lse


def _prefix_of(span: PrefixSpan, inputs: LayerInputs, held: Held) -> tuple[Tensor, Tensor]:
    """Keys `[P, KH, D]` and values `[P, KH, Dv]` of the prefix that a span sees."""
    pair = held[span.group]
    fresh_k, fresh_v = inputs.k[span.fresh], inputs.v[span.fresh]
    if pair is None:
        return fresh_k, fresh_v
    if not fresh_k.shape[0]:
        return pair
    return torch.cat([pair[0], fresh_k]), torch.cat([pair[1], fresh_v])


def _flash_cpu(
    q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None, is_causal: bool
) -> tuple[Tensor, Tensor]:
    """The CPU kernel of `scaled_dot_product_attention`, called directly as it returns the LSE.

    It handles grouped key heads itself, and needs one head size for q, k and v. If the last
    dimension is strided, it reads wrong values without an error, so such inputs are copied.
    """
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        is_causal=is_causal,
        attn_mask=None if mask is None else mask.unsqueeze(1),
        scale=scale,
    )
    return out.transpose(1, 2), lse.transpose(1, 2)


def _matmul(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    mask: Tensor | None,
    is_causal: bool,
    soft_cap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Attention by float32 matrix products, for every device, D != Dv and capped scores, too."""
    out = q.new_empty(*q.shape[:3], v.shape[3])
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    for batch, queries in _chunks(q, num_keys=k.shape[1]):
        num_keys = queries.stop if is_causal else k.shape[1]
        bias = None
        if is_causal:
            shape = (queries.stop - queries.start, num_keys)
            bias = q.new_full(shape, -torch.inf, dtype=torch.float32).triu(queries.start + 1)
        elif mask is not None:
            bias = mask.expand(q.shape[0], -1, -1)[batch, None, None, queries]
        out[batch, queries], lse[batch, queries] = _dense(
            q[batch, queries].float() * scale,
            k[batch, :num_keys].float(),
            v[batch, :num_keys].float(),
            bias,
            soft_cap,
        )
    return out, lse


def _chunks(q: Tensor, num_keys: int) -> Iterator[tuple[slice, slice]]:
    """Slices of the first two dimensions of `q` whose scores stay within SCORE_BYTES."""
    num_sequences, num_queries, num_heads, _ = q.shape
    budget = max(1, SCORE_BYTES // (4 * num_heads * num_keys))
    query_step = min(num_queries, budget)
    batch_step = budget // query_step
    for batch in range(0, num_sequences, batch_step):
        for query in range(0, num_queries, query_step):
            yield (
                slice(batch, min(batch + batch_step, num_sequences)),
                slice(query, min(query + query_step, num_queries)),
            )


def _dense(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, soft_cap: float
) -> tuple[Tensor, Tensor]:
    """Attention in float32, shapes as above; `bias` broadcasts to `[B, KH, H / KH, M, K]`."""
    num_sequences, num_queries, num_heads, head_dim = q.shape
    key_heads = k.shape[2]
    split_heads = (num_sequences, num_queries, key_heads, num_heads // key_heads, head_dim)
    # The queries of all heads that share a key head are one block: [B, KH, H / KH * M, D].
    grouped = q.reshape(split_heads).permute(0, 2, 3, 1, 4).flatten(2, 3)
    per_head = (num_sequences, key_heads, num_heads // key_heads, num_queries, -1)
    scores = (grouped @ k.permute(0, 2, 3, 1)).view(per_head)
    if soft_cap:
        scores = scores.div_(soft_cap).tanh_().mul_(soft_cap)
    if bias is not None:
        scores += bias
    lse = scores.logsumexp(-1)
    weights = (scores - lse.unsqueeze(-1)).exp_().flatten(2, 3)
    out = (weights @ v.transpose(1, 2)).view(per_head)
    return (out.permute(0, 3, 1, 2, 4).flatten(2, 3), lse.permute(0, 3, 1, 2).flatten(2, 3))
