"""Merge partial attention results by their log-sum-exp, with prefixes and with sinks."""

from collections.abc import Iterable

import torch
from torch import Tensor

from sglang_prefill_ext.attention.inputs import Held, LayerInputs
from sglang_prefill_ext.attention.partial import partial_attention
from sglang_prefill_ext.layout.dense_plan import PrefixSpan


def merge_states(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
) -> tuple[Tensor, Tensor]:
    """Attention over the union of two disjoint key sets, from the attention over each.

    ::

        lse = log(exp(lse_a) + exp(lse_b))
        out = (exp(lse_a) * out_a + exp(lse_b) * out_b) / exp(lse)

    Source: the composition of attention states in FlashInfer (Ye et al. 2025, section 2.2), which
    is the rescaling step of FlashAttention (Dao et al. 2022, algorithm 1) for two blocks.

    Args:
        out_a, out_b: `[tokens, heads, head_dim]`, any strides, both of one floating dtype.
        lse_a, lse_b: `[tokens, heads]` float32, natural log; -inf where the side saw no key.

    Returns:
        `out` `[tokens, heads, head_dim]` in the dtype of the inputs and `lse` `[tokens, heads]`
        float32. A side of weight zero is not used, whatever its `out` holds (NaN included). Where
        both sides are empty, `out` is 0 and `lse` is -inf; where one `lse` is NaN, both are NaN.
    """
    lse = torch.logaddexp(lse_a, lse_b)
    # exp(lse_b) / (exp(lse_a) + exp(lse_b)); NaN where both sides are empty or an lse is NaN. NaN
    # compares false, so neither side is used there. Where both sides are empty the weight becomes
    # 0 below; where an lse is NaN it stays NaN, and makes the result NaN.
    weight_b = torch.sigmoid(lse_b - lse_a).unsqueeze(-1)
    used_a = torch.where(weight_b < 1, out_a.float(), 0.0)
    used_b = torch.where(weight_b > 0, out_b.float(), 0.0)
    weight_b.masked_fill_(lse.isneginf().unsqueeze(-1), 0.0)
    return torch.lerp(used_a, used_b, weight_b).to(out_a.dtype), lse


def join_sinks(out: Tensor, lse: Tensor, sinks: Tensor) -> None:
    """Add the sinks to finished attention, in place: one key per head, whose value is 0.

    Call it once, after all merges: the sink is one key of the whole, not one of each part.

    Args:
        out: `[tokens, heads, head_dim]`; scaled down by the weight that the sinks take.
        lse: `[tokens, heads]` float32, natural log, of the keys alone; finite.
        sinks: `[heads]`, any floating dtype.

    Source: attention sinks (Xiao et al. 2024) as gpt-oss has them.
    """
    out.mul_(torch.sigmoid(lse - sinks.float()).unsqueeze(-1))


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
    variant = inputs.variant
    for span in spans:
        keys, values = _prefix_of(span, inputs, held)
        queries = span.queries
        part_out, part_lse = partial_attention(
            *(inputs.q[queries][None], keys[None], values[None], inputs.scale),
            soft_cap=variant.soft_cap,
        )
        merged = merge_states(out[queries], lse[queries], part_out[0], part_lse[0])
        out[queries], lse[queries] = merged
    if variant.sinks is not None:
        join_sinks(out, lse, variant.sinks)
    return out


def _prefix_of(span: PrefixSpan, inputs: LayerInputs, held: Held) -> tuple[Tensor, Tensor]:
    """Keys `[P, KH, D]` and values `[P, KH, Dv]` of the prefix that a span sees."""
    pair = held[span.group]
    fresh_k, fresh_v = inputs.k[span.fresh], inputs.v[span.fresh]
    if pair is None:
        return fresh_k, fresh_v
    if not fresh_k.shape[0]:
        return pair
    return torch.cat([pair[0], fresh_k]), torch.cat([pair[1], fresh_v])
