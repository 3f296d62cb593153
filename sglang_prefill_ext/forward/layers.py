"""Attention of one forward as the model's layers call it: reads and stores held K/V, attends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sglang_prefill_ext.attention.inputs import HeldKV, Latents, LayerInputs
from sglang_prefill_ext.forward.kv_pool import KVPool
from sglang_prefill_ext.forward.upload import upload
from sglang_prefill_ext.scheduling.planner import ForwardPlan
from sglang_prefill_ext.wire.arrays import places_of_ranges


class Attention(Protocol):
    """Attention over one layout; `DenseAttention` or `KernelAttention`."""

    def host_arrays(self) -> Sequence[NDArray[np.int32]]:
        """The arrays to upload."""

    def bind(self, arrays: Sequence[Tensor], page_table: Tensor | None = None) -> None:
        """Take the device arrays that all layers read.

        Args:
            arrays: those of `host_arrays`, uploaded.
            page_table: int32, the `held_slots` of the forward; it may be longer. None: no prefix is
                held.
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
        shortened: the layer, if any, that computes attention of the rows' last tokens only.
        pool: where held prefixes lie, and kept ones are stored.
    """

    def __init__(
        self, plan: ForwardPlan, attention: Attention, shortened: int | None, pool: KVPool
    ) -> None:
        self._attention = attention
        self._held = held_slots(plan.held)
        self._stored, self._stores = _stores(plan)
        self._shortened = shortened
        self._pool = pool

    def page_table(self) -> Tensor | None:
        """Make the page table for `Attention.bind`; None if no prefix is held.

        If the pool keeps latents, the table numbers the keys that each layer makes of them.
        """
        if self._held is None:
            return None
        if not self._pool.keeps_latents:
            return self._held.to(torch.int32)
        return torch.arange(len(self._held), dtype=torch.int32, device=self._held.device)

    def __call__(self, layer: int, inputs: LayerInputs) -> Tensor:
        latents = inputs.latents if self._pool.keeps_latents else None
        cached = None if self._held is None else self._read(layer, latents, self._held)
        if self._stores is not None:
            tokens = self._stored
            kept = (inputs.k[tokens], inputs.v[tokens]) if latents is None else latents.kept(tokens)
            self._pool.store(layer, self._stores, *kept)
        attend = self._attention.read if layer == self._shortened else self._attention.forward
        return attend(inputs, cached)

    def _read(self, layer: int, latents: Latents | None, held: Tensor) -> HeldKV:
        cached = self._pool.buffers(layer)
        if latents is None:
            return cached
        return latents.expanded(cached[0].index_select(0, held))


def held_slots(held: Sequence[Tensor | None]) -> Tensor | None:
    """Return the slots of all held prefixes, group after group; None if there are none.

    Args:
        held: per group its slots, integers `[held]` in the order of the tokens; None: it holds
            none.
    """
    found = [slots for slots in held if slots is not None]
    return torch.cat(found) if len(found) > 1 else next(iter(found), None)


def _stores(plan: ForwardPlan) -> tuple[slice | Tensor, Tensor | None]:
    """The tokens of a forward whose K/V are kept, and their slots; no slots where none are."""
    kept = [(number, slots) for number, slots in enumerate(plan.stores) if slots is not None]
    if not kept:
        return slice(0), None
    numbers, slots = zip(*kept, strict=True)
    starts, lens = plan.layout.group_starts[[*numbers]], np.array([*map(len, slots)])
    if len(kept) == 1:
        return slice(int(starts[0]), int(starts[0] + lens[0])), slots[0]
    (tokens,) = upload([places_of_ranges(starts, lens)], slots[0].device)
    return tokens, torch.cat(slots)
