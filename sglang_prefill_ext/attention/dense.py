"""Attention of one packed forward by dense torch calls, on every device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sglang_prefill_ext.attention.inputs import LayerInputs
from sglang_prefill_ext.attention.last_token import ReadoutAttention
from sglang_prefill_ext.attention.prefix import HeldKV, gather_held
from sglang_prefill_ext.attention.shared_prefix import PackedAttention
from sglang_prefill_ext.attention.windowed import WindowedAttention
from sglang_prefill_ext.layout.tokens import ForwardLayout


class DenseAttention:
    """Attention of one layout; every kind that its layers have is planned when first used."""

    def __init__(self, layout: ForwardLayout, device: torch.device) -> None:
        self._layout = layout
        self._device = device
        self._plans: dict[int | None, PackedAttention | WindowedAttention] = {}
        self._page_table: Tensor | None = None

    def host_arrays(self) -> Sequence[NDArray[np.int32]]:
        """Nothing is uploaded ahead: index arrays are made where they are used."""
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
        """None for a window that hides no token of any prompt."""
        if window is None:
            return None
        return window if window < self._last_position else None

    @cached_property
    def _last_position(self) -> int:
        return int(self._layout.positions().max())
