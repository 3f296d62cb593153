"""Attention of one forward by the Triton kernels, in a model whose layers' heads may differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sglang_prefill_ext.attention.inputs import HeldKV, LayerInputs
from sglang_prefill_ext.attention.kernels import KernelAttention
from sglang_prefill_ext.attention.way import HeadShape
from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.layout.tokens import ForwardLayout


class KernelsByHeads:
    """A `KernelAttention` for each shape of heads, on which the sizes of its tiles depend."""

    def __init__(self, parts: Mapping[HeadShape, KernelAttention]) -> None:
        self._parts = parts

    def host_arrays(self) -> Sequence[NDArray[np.int32]]:
        """The arrays to upload."""
        return [array for part in self._parts.values() for array in part.host_arrays()]

    def bind(self, arrays: Sequence[Tensor], page_table: Tensor | None = None) -> None:
        """See `layers.Attention.bind`; all parts have equally many arrays."""
        of_part = len(arrays) // len(self._parts)
        for number, part in enumerate(self._parts.values()):
            part.bind(arrays[of_part * number : of_part * (number + 1)], page_table)

    def forward(self, inputs: LayerInputs, cached: HeldKV | None) -> Tensor:
        """See `layers.Attention.forward`."""
        return self._parts[inputs.heads].forward(inputs, cached)

    def read(self, inputs: LayerInputs, cached: HeldKV | None) -> Tensor:
        """See `layers.Attention.read`."""
        return self._parts[inputs.heads].read(inputs, cached)


def kernel_attention(
    layout: ForwardLayout,
    way: AttentionWay,
    shapes: Sequence[HeadShape],
    dtype: torch.dtype,
    device: torch.device,
    *,
    most_groups: int | None = None,
    processors: int = 0,
) -> KernelAttention | KernelsByHeads:
    """Plan a forward for all layers of a model.

    Args:
        shapes: of the layers' heads, each once; all else is as in `KernelAttention`.
    """
    parts = {
        shape: KernelAttention(
            *(layout, way, shape, dtype, device), most_groups=most_groups, processors=processors
        )
        for shape in shapes
    }
    return KernelsByHeads(parts) if len(parts) > 1 else parts[shapes[0]]
