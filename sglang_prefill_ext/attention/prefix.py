"""The prefix that queries see beside the keys of their own call."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from sglang_prefill_ext.attention.inputs import LayerInputs
from sglang_prefill_ext.attention.merge import merge_states
from sglang_prefill_ext.attention.partial import partial_attention
from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.layout.dense_plan import PrefixSpan
from sglang_prefill_ext.layout.tokens import ForwardLayout

HeldKV: TypeAlias = tuple[Tensor, Tensor]
"""Keys `[n, KH, D]` and values `[n, KH, Dv]` of one layer: of n tokens of a held prefix, or of n
slots, some of which a page table names."""

Held: TypeAlias = Sequence[HeldKV | None]
"""One entry per group; None where the group holds nothing."""

Partial: TypeAlias = Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
"""``(q [Q,H,D], k [P,KH,D], v [P,KH,Dv], scale) -> out [Q,H,Dv], lse [Q,H]``, natural log: every
query sees every key, of which there is at least one."""

Merge: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""`merge.merge_states`, or what does the same."""


def dense_partial(
    q: Tensor, k: Tensor, v: Tensor, scale: float, *, soft_cap: float = 0.0
) -> tuple[Tensor, Tensor]:
    """`Partial` in torch; `soft_cap` as in `partial_attention`."""
    out, lse = partial_attention(q[None], k[None], v[None], scale, soft_cap=soft_cap)
    return out[0], lse[0]


def merge_prefixes(
    spans: Iterable[PrefixSpan],
    out: Tensor,
    lse: Tensor,
    inputs: LayerInputs,
    held: Held,
    *,
    partial: Partial = dense_partial,
    merge: Merge = merge_states,
) -> None:
    """Add every span's prefix to the attention of its queries, in place.

    Args:
        out: `[Q, H, Dv]` attention of the queries over the keys of their own calls...
        lse: `[Q, H]` float32, ...and its log-sum-exp; both become those of all keys.
        partial: computes the attention of queries over a prefix.
        merge: joins it with that over their own keys.
    """
    for span in spans:
        keys, values = _prefix_of(span, inputs, held)
        queries = span.queries
        part = partial(inputs.q[queries], keys, values, inputs.scale)
        out[queries], lse[queries] = merge(out[queries], lse[queries], *part)


def with_held(inputs: LayerInputs, held: Held) -> LayerInputs:
    """Return inputs with the K/V of held prefixes, in order, behind those of the forward."""
    pairs = [pair for pair in held if pair is not None]
    if not pairs:
        return inputs
    keys, values = zip(*pairs, strict=True)
    return replace(inputs, k=torch.cat([inputs.k, *keys]), v=torch.cat([inputs.v, *values]))


def write_page_table(held: Sequence[Tensor | None], table: Tensor) -> None:
    """Write the slots of all held prefixes into a page table, one behind the other.

    Args:
        held: per group its slots, integers `[held]` in the order of the tokens.
        table: int32, at least as long as all of them together; the rest stays as it is.
    """
    start = 0
    for slots in held:
        if slots is not None:
            table[start : start + len(slots)].copy_(slots)
            start += len(slots)


def gather_held(layout: ForwardLayout, cached: HeldKV | None, page_table: Tensor | None) -> Held:
    """Copy what the groups hold out of the slots that a page table names."""
    if cached is None or page_table is None:
        return [None] * len(layout.groups)
    lens = [group.held for group in layout.groups]
    keys, values = (torch.split(x.index_select(0, page_table), lens) for x in cached)
    pairs = zip(lens, keys, values, strict=True)
    return [(k, v) if held else None for held, k, v in pairs]


def check_inputs(layout: ForwardLayout, num_queries: int, inputs: LayerInputs, held: Held) -> None:
    """Raise PackingError unless the inputs have the lengths that the layout asks for."""
    lens = [0 if pair is None else pair[0].shape[0] for pair in held]
    wanted = [group.held for group in layout.groups]
    if lens != wanted:
        raise PackingError(f"held has {lens} tokens per group, the layout says {wanted}")
    for name, count in (("q", num_queries), ("k", layout.num_tokens), ("v", layout.num_tokens)):
        tokens = getattr(inputs, name).shape[0]
        if tokens != count:
            raise PackingError(
                f"{name} has {tokens} tokens, the layout has {count}; "
                "drop padding tokens before attention"
            )


def _prefix_of(span: PrefixSpan, inputs: LayerInputs, held: Held) -> tuple[Tensor, Tensor]:
    """Keys `[P, KH, D]` and values `[P, KH, Dv]` of the prefix that a span sees."""
    pair = held[span.group]
    fresh_k, fresh_v = inputs.k[span.fresh], inputs.v[span.fresh]
    if pair is None:
        return fresh_k, fresh_v
    if not fresh_k.shape[0]:
        return pair
    return torch.cat([pair[0], fresh_k]), torch.cat([pair[1], fresh_v])
