"""Attention of one packed forward in torch, for every device."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from sglang_prefill_ext.attention.merge import join_sinks
from sglang_prefill_ext.attention.partial import partial_attention
from sglang_prefill_ext.attention.plan import TileBatch, plan_attention
from sglang_prefill_ext.attention.prefix import (
    HeldKV,
    check_inputs,
    dense_partial,
    merge_prefixes,
)
from sglang_prefill_ext.attention.token_grid import TokenGrid, in_token_order
from sglang_prefill_ext.attention.variant import PLAIN, AttentionVariant
from sglang_prefill_ext.oneshot.layout import ForwardLayout


class PackedAttention:
    """Attention over the layout of one forward, built once and called by every layer.

    A fresh prefix token sees the held prefix and the fresh one causally; a row's token sees the
    whole prefix and its own row causally, or all of it where the layout is not causal.
    `plan_attention` decides how that is computed.

    Memory beyond the inputs and the output: masks of at most about 4 KB per token (without
    causality 4 bytes a token of the longest row), K/V copied in front of tiles, and what
    `partial_attention` needs.
    """

    def __init__(self, layout: ForwardLayout, device: torch.device) -> None:
        plan = plan_attention(layout)
        self._layout = layout
        self._num_tokens = layout.num_tokens
        self._copied_groups = plan.copied_groups
        self._spans = plan.spans
        self._batches = [_DeviceBatch(batch, layout.num_tokens, device) for batch in plan.batches]

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float,
        held: Sequence[HeldKV | None],
        variant: AttentionVariant = PLAIN,
    ) -> Tensor:
        """Attention of one layer.

        Args:
            q: `[T, H, D]`, positions already encoded; any strides.
            k: `[T, KH, D]`, likewise; H is a multiple of KH.
            v: `[T, KH, Dv]`.
            scale: factor of the scores before the softmax.
            held: one entry per group; None where the group holds nothing.
            variant: without a window, which `WindowedAttention` has.

        Returns:
            `[T, H, Dv]`, in the dtype of `q`.

        Raises:
            PackingError: an input does not have the shape that the layout asks for.
        """
        check_inputs(self._layout, self._num_tokens, q, k, v, held)
        out, lse = self._attend_tiles(q, k, v, scale, held, variant.soft_cap)
        capped = partial(dense_partial, soft_cap=variant.soft_cap)
        merge_prefixes(self._spans, out, lse, q, k, v, scale, held, partial=capped)
        if variant.sinks is not None:
            join_sinks(out, lse, variant.sinks)
        return out

    def _attend_tiles(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float,
        held: Sequence[HeldKV | None],
        soft_cap: float,
    ) -> tuple[Tensor, Tensor]:
        """Attention within the tiles: `out` `[T, H, Dv]` and `lse` `[T, H]`."""
        copied = [pair for group in self._copied_groups if (pair := held[group]) is not None]
        if copied:
            k = torch.cat([k, *(keys for keys, _ in copied)])
            v = torch.cat([v, *(values for _, values in copied)])
        parts = (batch.attend(q, k, v, scale, soft_cap) for batch in self._batches)
        grids = [batch.results for batch in self._batches]
        out, lse = in_token_order(grids, parts, self._num_tokens + 1)
        return out[: self._num_tokens], lse[: self._num_tokens]


class _DeviceBatch:
    """A `TileBatch` on the device: where its tokens come from and go to, and its mask."""

    def __init__(self, batch: TileBatch, num_tokens: int, device: torch.device) -> None:
        self._queries = TokenGrid(batch.query_index, device)
        self._keys = TokenGrid(batch.key_index, device)
        # Padding is written to the row behind the last token.
        self.results = TokenGrid(np.where(batch.is_padding, num_tokens, batch.query_index), device)
        self._is_causal = batch.is_causal
        self._mask: Tensor | None = None
        if not batch.is_causal and not batch.is_full:
            self._mask = torch.from_numpy(batch.additive_mask()).to(device)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, soft_cap: float
    ) -> tuple[Tensor, Tensor]:
        """`out` `[B, M, H, Dv]` and `lse` `[B, M, H]`; keys are numbered as in the plan."""
        return partial_attention(
            self._queries.gather(q),
            self._keys.gather(k),
            self._keys.gather(v),
            scale,
            mask=self._mask,
            is_causal=self._is_causal,
            soft_cap=soft_cap,
        )
