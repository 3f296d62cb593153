"""Attention of layers with a sliding window, in torch, for every device."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
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
from sglang_prefill_ext.layout.tokens import ForwardLayout
from sglang_prefill_ext.layout.window_plan import WindowBatch, plan_windowed


class WindowedAttention:
    """Attention of layers that have a window, over the layout of one forward.

    It does the work of `PackedAttention` or, if `queries` are given, of `ReadoutAttention`.

    Args:
        window: how many tokens before itself a query sees.
        queries: int64 `[Q]`, ascending: the tokens that are queries; None: all.
    """

    def __init__(
        self,
        layout: ForwardLayout,
        window: int,
        device: torch.device,
        queries: NDArray[np.int64] | None = None,
    ) -> None:
        self._layout = layout
        self._num_queries = layout.num_tokens if queries is None else queries.size
        self._batches = [
            _DeviceBatch(batch, window, device) for batch in plan_windowed(layout, window, queries)
        ]

    def forward(self, inputs: LayerInputs, held: Held) -> Tensor:
        """See `PackedAttention.forward`; the window of `inputs` must be that of the plan."""
        check_inputs(self._layout, self._num_queries, inputs, held)
        inputs = with_held(inputs, held)
        parts = (batch.attend(inputs) for batch in self._batches)
        grids = [batch.queries for batch in self._batches]
        out, lse = in_token_order(grids, parts, len(inputs.q))
        return finish_dense((), out, lse, inputs, held)


class _DeviceBatch:
    """A `WindowBatch` on the device."""

    def __init__(self, batch: WindowBatch, window: int, device: torch.device) -> None:
        self.queries = TokenGrid(batch.query_index, device)
        self._keys = TokenGrid(batch.key_index, device)
        self._query_position = torch.from_numpy(batch.query_position).to(device)[:, :, None]
        self._key_position = torch.from_numpy(batch.key_position).to(device)[:, None, :]
        self._window = window

    def attend(self, inputs: LayerInputs) -> tuple[Tensor, Tensor]:
        """`out` `[B, M, H, Dv]` and `lse` `[B, M, H]` of this batch's queries."""
        keys = self._keys
        return partial_attention(
            *(self.queries.gather(inputs.q), keys.gather(inputs.k), keys.gather(inputs.v)),
            inputs.scale,
            mask=self._mask(),
            soft_cap=inputs.variant.soft_cap,
        )

    def _mask(self) -> Tensor:
        """Float32 `[B, M, K]`; made anew in every layer, as all masks together would take too much
        memory."""
        distance = self._query_position - self._key_position
        hidden = (distance < 0) | (distance > self._window)
        return torch.zeros_like(hidden, dtype=torch.float32).masked_fill_(hidden, -torch.inf)
