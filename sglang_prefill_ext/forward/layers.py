"""The attention of one forward as its model's layers call it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sglang_prefill_ext.attention.inputs import HeldKV, LayerInputs, write_page_table
from sglang_prefill_ext.forward.kv_pool import KVPool
from sglang_prefill_ext.scheduling.planner import ForwardPlan


class Attention(Protocol):
    """Attention over one layout; `DenseAttention` or `KernelAttention`."""

    def host_arrays(self) -> Sequence[NDArray[np.int32]]:
        """The arrays to upload."""

    def bind(self, arrays: Sequence[Tensor], page_table: Tensor | None = None) -> None:
        """Take what all layers read.

        Args:
            arrays: those of `host_arrays`, uploaded.
            page_table: int32, the slots of all held prefixes, see `write_page_table`; longer ones
                are fine. None: no layer is called with K/V that are held.
        """

    def forward(self, inputs: LayerInputs, cached: HeldKV | None) -> Tensor:
        """Attention of all tokens.

        Args:
            cached: K/V of the slots that the page table names.
        """

    def read(self, inputs: LayerInputs, cached: HeldKV | None) -> Tensor:
        """Attention of the read positions alone; likewise."""


class LayerAttention:
    """`Attend` of one forward: K/V that groups hold are read in the pool, and what they leave is
    written there.

    Args:
        held, stores: see `PrefixedForward`.
        shortened: the layer, if any, that is asked for the ends of rows only.
        pool: of all slots.
    """

    def __init__(
        self,
        plan: ForwardPlan,
        attention: Attention,
        held: Sequence[Tensor | None],
        stores: Sequence[Tensor | None],
        shortened: int | None,
        pool: KVPool,
    ) -> None:
        self._attention = attention
        self._held = held
        starts = plan.layout.group_starts.tolist() if _any_slots(stores) else ()
        self._stores = [
            (slice(start, start + len(slots)), slots)
            for start, slots in zip(starts, stores, strict=False)
            if slots is not None
        ]
        self._holds_any = _any_slots(held)
        self._shortened = shortened
        self._pool = pool

    def page_table(self, device: torch.device) -> Tensor | None:
        """See `Attention.bind`."""
        if not self._holds_any:
            return None
        num_held = sum(len(slots) for slots in self._held if slots is not None)
        table = torch.empty(num_held, dtype=torch.int32, device=device)
        write_page_table(self._held, table)
        return table

    def __call__(self, layer: int, inputs: LayerInputs) -> Tensor:
        cached = self._pool.buffers(layer) if self._holds_any else None
        for tokens, slots in self._stores:
            self._pool.store(layer, slots, inputs.k[tokens], inputs.v[tokens])
        attend = self._attention.read if layer == self._shortened else self._attention.forward
        return attend(inputs, cached)


def _any_slots(of_groups: Sequence[Tensor | None]) -> bool:
    """Whether any group has slots."""
    return any(slots is not None for slots in of_groups)
