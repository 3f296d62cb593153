"""What a layer hands to the attention of a forward."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sglang_prefill_ext.attention.variant import PLAIN, AttentionVariant


@dataclass(frozen=True, slots=True, eq=False)
class LayerInputs:
    """Queries, keys and values of one layer, positions already encoded; any strides.

    Attributes:
        q: `[Q, H, D]`, of all tokens of the forward or of those that are read.
        k: `[T, KH, D]` of the whole forward; H is a multiple of KH.
        v: `[T, KH, Dv]`, likewise.
        scale: factor of the scores before the softmax.
        variant: what the layer has beside that.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    variant: AttentionVariant = PLAIN
