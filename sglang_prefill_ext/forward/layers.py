"""Attention of one forward as the model's layers call it: reads and stores held K/V, attends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sglang_prefill_ext.attention.inputs import HeldKV, Latents, LayerInputs, write_page_table
from sglang_prefill_ext.forward.kv_pool import KVPool
from sglang_prefill_ext.scheduling.planner import ForwardPlan


class Attention(Protocol):
    """Attention over one layout; `DenseAttention` or `KernelAttention`."""

    def host_arrays(self) -> Sequence[NDArray[np.int32]]:
        """The arrays to upload."""

    def bind(self, arrays: Sequence[Tensor], page_table: Tensor | None = None) -> None:
        """Take the device arrays that all layers read.

        Args:
            arrays: those of `host_arrays`, uploaded.
            page_table: int32, the slots of all held prefixes, see `write_page_table`; it may be
                longer. None: no prefix is held.
        """

    def forward(self, inputs: LayerInputs, cached: HeldKV | None) -> Tensor:
        """Attention of all tokens.

        Args:
            cached: K/V of the pool, of which the page table names slots; None: nothing is held.
        """

    def read(self, inputs: LayerInputs, cached: HeldKV | None) -> Tensor:
        """Attention of the read positions alone; arguments as in `forward`."""


class LayerAttention:
    """`Attend` of one forward: each layer stores K/V to be kept in the pool, and reads held ones.

    Args:
        held, stores: see `PrefixedForward`.
        shortened: the layer, if any, that computes attention of the rows' last tokens only.
        pool: where held prefixes lie, and kept ones are stored.
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
        self._held_latents: Tensor | None = None

    def page_table(self, device: torch.device) -> Tensor | None:
        """Make the page table for `Attention.bind`; None if no prefix is held.

        If the pool keeps latents, the table numbers the keys that each layer makes of them.
        """
        if not self._holds_any:
            return None
        num_held = sum(len(slots) for slots in self._held if slots is not None)
        table = torch.empty(num_held, dtype=torch.int32, device=device)
        write_page_table(self._held, table)
        if not self._pool.keeps_latents:
            return table
        self._held_latents = table
        return torch.arange(num_held, dtype=torch.int32, device=device)

    def __call__(self, layer: int, inputs: LayerInputs) -> Tensor:
        latents = inputs.latents if self._pool.keeps_latents else None
        cached = self._read(layer, latents) if self._holds_any else None
        for tokens, slots in self._stores:
            kept = (inputs.k[tokens], inputs.v[tokens]) if latents is None else latents.kept(tokens)
            self._pool.store(layer, slots, *kept)
        attend = self._attention.read if layer == self._shortened else self._attention.forward
        return attend(inputs, cached)

    def _read(self, layer: int, latents: Latents | None) -> HeldKV:
        cached = self._pool.buffers(layer)
        if latents is None or self._held_latents is None:
            return cached
        return latents.expanded(cached[0].index_select(0, self._held_latents))


def _any_slots(of_groups: Sequence[Tensor | None]) -> bool:
    """Whether any group has slots."""
    return any(slots is not None for slots in of_groups)
