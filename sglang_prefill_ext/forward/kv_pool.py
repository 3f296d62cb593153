"""Memory for K/V of all layers, by slot: SGLang's pool, as packed forwards read and write it."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from sglang_prefill_ext.attention.prefix import HeldKV


class KVPool(Protocol):
    """Slots of one token each; whoever has allocated some may write there. Slot 0 is nobody's:
    what is written there is never read."""

    def buffers(self, layer: int) -> HeldKV:
        """Keys ``[slots, KH, D]`` and values ``[slots, KH, Dv]`` of a layer: the memory itself,
        at the same addresses for as long as the pool lives."""
        ...

    def store(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Write to slots of a layer.

        Args:
            slots: int64 ``[n]``; only slot 0 may be among them more than once.
            k: ``[n, KH, D]``; v: ``[n, KH, Dv]``; any strides but of the last dimension.
        """
        ...
