"""Attention of one packed forward by dense torch calls; in the last layer only of read tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sglang_prefill_ext.attention.dense_calls import DenseCall, DenseCalls
from sglang_prefill_ext.attention.inputs import HeldKV, LayerInputs, gather_held
from sglang_prefill_ext.layout.dense_plan import TileBatch, plan_attention
from sglang_prefill_ext.layout.last_token_plan import row_batches, row_spans
from sglang_prefill_ext.layout.tokens import ForwardLayout
from sglang_prefill_ext.layout.window_plan import WindowBatch, plan_windowed


def packed_attention(layout: ForwardLayout, device: torch.device) -> DenseCalls:
    """Plan attention of all tokens, without a window.

    A token of a fresh prefix sees the whole held prefix, and the fresh one causally. A token of a
    row sees the whole prefix, and its own row causally, or entirely if the layout is not causal.

    Memory beyond the inputs and the output: masks of at most about 4 KB per token (if the layout is
    not causal, 4 bytes per token and token of the longest row), K/V copied in front of tiles, and
    what `partial_attention` needs.
    """
    plan = plan_attention(layout)
    calls = [_tile_call(batch, layout.num_tokens, device) for batch in plan.batches]
    return DenseCalls(
        *(layout, layout.num_tokens, calls),
        padded=True,
        copied_groups=plan.copied_groups,
        spans=plan.spans,
    )


def _tile_call(batch: TileBatch, num_tokens: int, device: torch.device) -> DenseCall:
    masked = not batch.is_causal and not batch.is_full
    return DenseCall(
        *(batch.query_index, batch.key_index, device),
        # Padding is written to the place behind the last token.
        result_index=np.where(batch.is_padding, num_tokens, batch.query_index),
        mask=batch.additive_mask() if masked else None,
        is_causal=batch.is_causal,
    )


def readout_attention(layout: ForwardLayout, device: torch.device) -> DenseCalls:
    """Plan attention of the last token of every row, without a window."""
    calls = [
        DenseCall(batch.rows[:, None], batch.key_index, device, mask=batch.additive_mask())
        for batch in row_batches(layout)
    ]
    return DenseCalls(layout, layout.num_rows, calls, spans=list(row_spans(layout)))


def windowed_attention(
    layout: ForwardLayout,
    window: int,
    device: torch.device,
    queries: NDArray[np.int64] | None = None,
) -> DenseCalls:
    """Plan attention with a window.

    Args:
        window: how many tokens before itself a query sees.
        queries: int64 `[Q]`, ascending: the tokens that are queries; None: all.
    """
    calls = [
        _window_call(batch, window, device) for batch in plan_windowed(layout, window, queries)
    ]
    num_queries = layout.num_tokens if queries is None else queries.size
    return DenseCalls(layout, num_queries, calls, copied_groups=range(len(layout.groups)))


def _window_call(batch: WindowBatch, window: int, device: torch.device) -> DenseCall:
    query_position = torch.from_numpy(batch.query_position).to(device)[:, :, None]
    key_position = torch.from_numpy(batch.key_position).to(device)[:, None, :]
    mask = partial(_window_mask, query_position, key_position, window)
    return DenseCall(batch.query_index, batch.key_index, device, mask=mask)


def _window_mask(query_position: Tensor, key_position: Tensor, window: int) -> Tensor:
    """Float32 `[B, M, K]`; made anew in every layer, as all masks together would take too much
    memory."""
    distance = query_position - key_position
    hidden = (distance < 0) | (distance > window)
    return torch.zeros_like(hidden, dtype=torch.float32).masked_fill_(hidden, -torch.inf)


class DenseAttention:
    """Attention of one layout for all layers; each window is planned by the first layer with it."""

    def __init__(self, layout: ForwardLayout, device: torch.device) -> None:
        self._layout = layout
        self._device = device
        self._plans: dict[int | None, DenseCalls] = {}
        self._page_table: Tensor | None = None

    def host_arrays(self) -> Sequence[NDArray[np.int32]]:
        """None: index arrays go to the device when a layer's attention is planned."""
        return ()

    def bind(self, arrays: Sequence[Tensor], page_table: Tensor | None = None) -> None:
        """See `layers.Attention.bind`."""
        self._page_table = page_table

    def forward(self, inputs: LayerInputs, cached: HeldKV | None) -> Tensor:
        """See `layers.Attention.forward`."""
        held = gather_held(self._layout, cached, self._page_table)
        window = self._effective(inputs.window)
        if window not in self._plans:
            self._plans[window] = (
                packed_attention(self._layout, self._device)
                if window is None
                else windowed_attention(self._layout, window, self._device)
            )
        return self._plans[window].forward(inputs, held)

    def read(self, inputs: LayerInputs, cached: HeldKV | None) -> Tensor:
        """See `layers.Attention.read`."""
        if not self._layout.num_rows:
            return inputs.q.new_zeros(*inputs.q.shape[:2], inputs.v.shape[2])
        held = gather_held(self._layout, cached, self._page_table)
        window = self._effective(inputs.window)
        attention = (
            readout_attention(self._layout, self._device)
            if window is None
            else windowed_attention(self._layout, window, self._device, self._layout.row_ends)
        )
        return attention.forward(inputs, held)

    def _effective(self, window: int | None) -> int | None:
        """The window, or None if it hides no token of any prompt."""
        if window is None:
            return None
        return window if window < self._last_position else None

    @cached_property
    def _last_position(self) -> int:
        return int(self._layout.positions().max())
