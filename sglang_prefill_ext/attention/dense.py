"""Attention of one packed forward by dense torch calls; in the last layer only of read tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sglang_prefill_ext.attention.inputs import (
    Held,
    HeldKV,
    LayerInputs,
    TokenGrid,
    check_inputs,
    gather_held,
    in_token_order,
)
from sglang_prefill_ext.attention.partial import finish_dense, partial_attention
from sglang_prefill_ext.attention.shared_prefix import PackedAttention
from sglang_prefill_ext.attention.windowed import WindowedAttention
from sglang_prefill_ext.layout.last_token_plan import RowBatch, plan_readout
from sglang_prefill_ext.layout.tokens import ForwardLayout


class ReadoutAttention:
    """Attention of the last token of every row; `plan_readout` decides by which dense calls."""

    def __init__(self, layout: ForwardLayout, device: torch.device) -> None:
        plan = plan_readout(layout)
        self._layout = layout
        self._spans = plan.spans
        self._batches = [_DeviceBatch(batch, device) for batch in plan.batches]

    def forward(self, inputs: LayerInputs, held: Held) -> Tensor:
        """Attention of one layer.

        Args:
            inputs: queries at the last tokens of rows; no window (use `WindowedAttention`).

        Returns:
            `[rows, H, Dv]`, in the dtype of the queries.

        Raises:
            PackingError: an input does not have the shape that the layout asks for.
        """
        check_inputs(self._layout, self._layout.num_rows, inputs, held)
        parts = (batch.attend(inputs) for batch in self._batches)
        out, lse = in_token_order([batch.rows for batch in self._batches], parts, len(inputs.q))
        return finish_dense(self._spans, out, lse, inputs, held)


class _DeviceBatch:
    """A `RowBatch` on the device."""

    def __init__(self, batch: RowBatch, device: torch.device) -> None:
        self.rows = TokenGrid(batch.rows[:, None], device)
        self._keys = TokenGrid(batch.key_index, device)
        mask = batch.additive_mask()
        self._mask = None if mask is None else torch.from_numpy(mask).to(device)

    def attend(self, inputs: LayerInputs) -> tuple[Tensor, Tensor]:
        """`out` `[B, 1, H, Dv]` and `lse` `[B, 1, H]` of this batch's rows."""
        keys = self._keys
        return partial_attention(
            *(self.rows.gather(inputs.q), keys.gather(inputs.k), keys.gather(inputs.v)),
            inputs.scale,
            mask=self._mask,
            soft_cap=inputs.variant.soft_cap,
        )


class DenseAttention:
    """Attention of one layout for all layers; each window is planned by the first layer with it."""

    def __init__(self, layout: ForwardLayout, device: torch.device) -> None:
        self._layout = layout
        self._device = device
        self._plans: dict[int | None, PackedAttention | WindowedAttention] = {}
        self._page_table: Tensor | None = None

    def host_arrays(self) -> Sequence[NDArray[np.int32]]:
        """None: index arrays go to the device when a layer's attention is planned."""
        return ()

    def bind(self, arrays: Sequence[Tensor], page_table: Tensor | None = None) -> None:
        """See `layers.Attention.bind`."""
        self._page_table = page_table

    def forward(self, inputs: LayerInputs, cached: HeldKV | None) -> Tensor:
        """Attention of all tokens; see `PackedAttention.forward`."""
        held = gather_held(self._layout, cached, self._page_table)
        window = self._effective(inputs.variant.window)
        if window not in self._plans:
            self._plans[window] = (
                PackedAttention(self._layout, self._device)
                if window is None
                else WindowedAttention(self._layout, window, self._device)
            )
        return self._plans[window].forward(inputs, held)

    def read(self, inputs: LayerInputs, cached: HeldKV | None) -> Tensor:
        """Attention of the read positions; see `ReadoutAttention.forward`."""
        if not self._layout.num_rows:
            return inputs.q.new_zeros(*inputs.q.shape[:2], inputs.v.shape[2])
        held = gather_held(self._layout, cached, self._page_table)
        window = self._effective(inputs.variant.window)
        attention = (
            ReadoutAttention(self._layout, self._device)
            if window is None
            else WindowedAttention(self._layout, window, self._device, self._layout.row_ends)
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
