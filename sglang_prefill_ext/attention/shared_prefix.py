"""Attention of all tokens of a packed forward by dense torch calls, for every device."""

import numpy as np
import torch
from torch import Tensor

from sglang_prefill_ext.attention.inputs import (
    Held,
    LayerInputs,
    TokenGrid,
    check_inputs,
    in_token_order,
    with_held,
)
from sglang_prefill_ext.attention.partial import finish_dense, partial_attention
from sglang_prefill_ext.layout.dense_plan import TileBatch, plan_attention
from sglang_prefill_ext.layout.tokens import ForwardLayout


class PackedAttention:
    """Attention over the layout of one forward, built once and called by every layer.

    A token of a fresh prefix sees the whole held prefix, and the fresh one causally. A token of a
    row sees the whole prefix, and its own row causally, or entirely if the layout is not causal.
    `plan_attention` decides by which calls that is computed.

    Memory beyond the inputs and the output: masks of at most about 4 KB per token (if the layout is
    not causal, 4 bytes per token and token of the longest row), K/V copied in front of tiles, and
    what `partial_attention` needs.
    """

    def __init__(self, layout: ForwardLayout, device: torch.device) -> None:
        plan = plan_attention(layout)
        self._layout = layout
        self._num_tokens = layout.num_tokens
        self._copied_groups = plan.copied_groups
        self._spans = plan.spans
        self._batches = [_DeviceBatch(batch, layout.num_tokens, device) for batch in plan.batches]

    def forward(self, inputs: LayerInputs, held: Held) -> Tensor:
        """Attention of one layer.

        Args:
            inputs: queries of all tokens; no window (use `WindowedAttention`).

        Returns:
            `[T, H, Dv]`, in the dtype of the queries.

        Raises:
            PackingError: an input does not have the shape that the layout asks for.
        """
        check_inputs(self._layout, self._num_tokens, inputs, held)
        out, lse = self._attend_tiles(inputs, held)
        return finish_dense(self._spans, out, lse, inputs, held)

    def _attend_tiles(self, inputs: LayerInputs, held: Held) -> tuple[Tensor, Tensor]:
        """Attention within the tiles: `out` `[T, H, Dv]` and `lse` `[T, H]`."""
        inputs = with_held(inputs, [held[group] for group in self._copied_groups])
        parts = (batch.attend(inputs) for batch in self._batches)
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

    def attend(self, inputs: LayerInputs) -> tuple[Tensor, Tensor]:
        """`out` `[B, M, H, Dv]` and `lse` `[B, M, H]`; keys are numbered as in the plan."""
        return partial_attention(
            self._queries.gather(inputs.q),
            self._keys.gather(inputs.k),
            self._keys.gather(inputs.v),
            inputs.scale,
            mask=self._mask,
            is_causal=self._is_causal,
            soft_cap=inputs.variant.soft_cap,
        )
