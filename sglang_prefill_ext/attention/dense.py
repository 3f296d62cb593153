"""Attention of one packed forward by dense torch calls, on every device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sglang_prefill_ext.attention.prefix import HeldKV
from sglang_prefill_ext.attention.readout import ReadoutAttention
from sglang_prefill_ext.attention.shared_prefix import PackedAttention
from sglang_prefill_ext.oneshot.layout import ForwardLayout


class DenseAttention:
    """`PackedAttention` and `ReadoutAttention` of one layout, each planned when first used."""

    def __init__(self, layout: ForwardLayout, device: torch.device) -> None:
        self._layout = layout
        self._device = device
        self._packed: PackedAttention | None = None

    def host_arrays(self) -> Sequence[NDArray[np.int32]]:
        return ()

    def bind(self, arrays: Sequence[Tensor]) -> None:
        """Nothing is uploaded ahead: index arrays are made where they are used."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, held: Sequence[HeldKV | None]
    ) -> Tensor:
        """Attention of all tokens; see `PackedAttention.forward`."""
        if self._packed is None:
            self._packed = PackedAttention(self._layout, self._device)
        return self._packed.forward(q, k, v, scale, held)

    def read(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, held: Sequence[HeldKV | None]
    ) -> Tensor:
        """Attention of the read positions; see `ReadoutAttention.forward`."""
        if not self._layout.num_rows:
            return q.new_zeros(*q.shape[:2], v.shape[2])
        return ReadoutAttention(self._layout, self._device).forward(q, k, v, scale, held)
