"""Attention of one packed forward by dense torch calls; in the last layer only of read tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sglang_prefill_ext.attention.dense_calls import DenseCall, DenseCalls
from sglang_prefill_ext.attention.inputs import Held, HeldKV, LayerInputs
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
    limits: Limits,
    device: torch.device,
    queries: NDArray[np.int64] | None = None,
) -> DenseCalls:
    """Plan attention with a window, or within chunks.

    Args:
        queries: int64 `[Q]`, ascending: the tokens that are queries; None: all.
    """
    planned = plan_windowed(layout, limits.window, queries, chunk=limits.chunk)
    calls = [_window_call(batch, device) for batch in planned]
    num_queries = layout.num_tokens if queries is None else queries.size
    return DenseCalls(layout, num_queries, calls, copied_groups=range(len(layout.groups)))


def _window_call(batch: WindowBatch, device: torch.device) -> DenseCall:
    first, last = (
        torch.from_numpy(positions).to(device)[:, :, None]
        for positions in (batch.first_position, batch.query_position)
    )
    key_position = torch.from_numpy(batch.key_position).to(device)[:, None, :]
    mask = partial(_window_mask, first, last, key_position)
    return DenseCall(batch.query_index, batch.key_index, device, mask=mask)


def _window_mask(first: Tensor, last: Tensor, key_position: Tensor) -> Tensor:
    """Float32 `[B, M, K]`; made anew in every layer, as all masks together would take too much
    memory."""
    hidden = (key_position < first) | (key_position > last)
    return torch.zeros_like(hidden, dtype=torch.float32).masked_fill_(hidden, -torch.inf)


class Limits(NamedTuple):
    """Which tokens before itself a query sees, see `LayerInputs`; the defaults are all."""

    window: int | None = None
    chunk: int = 0


_UNLIMITED = Limits()


class DenseAttention:
    """A `layers.Attention`; the first layer with some limits plans for them."""

    def __init__(self, layout: ForwardLayout, device: torch.device) -> None:
        self._layout = layout
        self._device = device
        self._plans: dict[Limits, DenseCalls] = {}
        self._page_table: Tensor | None = None

    def host_arrays(self) -> Sequence[NDArray[np.int32]]:
        """None: index arrays go to the device when a layer's attention is planned."""
        return ()

    def bind(self, arrays: Sequence[Tensor], page_table: Tensor | None = None) -> None:
        self._page_table = page_table

    def forward(self, inputs: LayerInputs, cached: HeldKV | None) -> Tensor:
        held = self._gathered(cached)
        limits = self._limits_of(inputs)
        if limits not in self._plans:
            self._plans[limits] = (
                packed_attention(self._layout, self._device)
                if limits == _UNLIMITED
                else windowed_attention(self._layout, limits, self._device)
            )
        return self._plans[limits].forward(inputs, held)

    def read(self, inputs: LayerInputs, cached: HeldKV | None) -> Tensor:
        if not self._layout.num_rows:
            return inputs.q.new_zeros(*inputs.q.shape[:2], inputs.v.shape[2])
        held = self._gathered(cached)
        limits = self._limits_of(inputs)
        attention = (
            readout_attention(self._layout, self._device)
            if limits == _UNLIMITED
            else windowed_attention(self._layout, limits, self._device, self._layout.row_ends)
        )
        return attention.forward(inputs, held)

    def _gathered(self, cached: HeldKV | None) -> Held:
        """Copy the K/V of held prefixes from the slots that the page table names."""
        if cached is None or self._page_table is None:
            return [None] * len(self._layout.groups)
        lens = self._layout.held.tolist()
        keys, values = (torch.split(x.index_select(0, self._page_table), lens) for x in cached)
        pairs = zip(lens, keys, values, strict=True)
        return [(k, v) if held else None for held, k, v in pairs]

    def _limits_of(self, inputs: LayerInputs) -> Limits:
        """Those that hide a token of some prompt."""
        window, last = inputs.window, self._last_position
        if window is not None and window >= last:
            window = None
        return Limits(window, inputs.chunk if inputs.chunk <= last else 0)

    @cached_property
    def _last_position(self) -> int:
        return int(self._layout.positions().max())
