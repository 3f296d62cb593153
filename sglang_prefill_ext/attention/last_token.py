"""Attention of the last layer in torch: one query a row."""

from functools import partial

import torch
from torch import Tensor

from sglang_prefill_ext.attention.inputs import LayerInputs
from sglang_prefill_ext.attention.merge import join_sinks
from sglang_prefill_ext.attention.partial import partial_attention
from sglang_prefill_ext.attention.prefix import (
    Held,
    check_inputs,
    dense_partial,
    merge_prefixes,
)
from sglang_prefill_ext.attention.token_grid import TokenGrid, in_token_order
from sglang_prefill_ext.layout.last_token_plan import RowBatch, plan_readout
from sglang_prefill_ext.layout.tokens import ForwardLayout


class ReadoutAttention:
    """`PackedAttention` for the last token of every row; `plan_readout` decides the calls."""

    def __init__(self, layout: ForwardLayout, device: torch.device) -> None:
        plan = plan_readout(layout)
        self._layout = layout
        self._spans = plan.spans
        self._batches = [_DeviceBatch(batch, device) for batch in plan.batches]

    def forward(self, inputs: LayerInputs, held: Held) -> Tensor:
        """Attention of one layer.

        Args:
            inputs: queries at the layout's read positions; without a window, which
                `WindowedAttention` has.

        Returns:
            `[rows, H, Dv]`, in the dtype of the queries.

        Raises:
            PackingError: an input does not have the shape that the layout asks for.
        """
        check_inputs(self._layout, self._layout.num_rows, inputs, held)
        parts = (batch.attend(inputs) for batch in self._batches)
        out, lse = in_token_order([batch.rows for batch in self._batches], parts, len(inputs.q))
        variant = inputs.variant
        capped = partial(dense_partial, soft_cap=variant.soft_cap)
        merge_prefixes(self._spans, out, lse, inputs, held, partial=capped)
        if variant.sinks is not None:
            join_sinks(out, lse, variant.sinks)
        return out


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
