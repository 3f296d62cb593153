"""Arrays of KV pool slots that graphs read at fixed addresses, updated before each replay."""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_prefill_ext.attention.inputs import HeldKV, held_slots
from sglang_prefill_ext.forward.kv_pool import KVPool
from sglang_prefill_ext.scheduling.planner import ForwardPlan

HELD_TOKENS = 1 << 14
"""Entries of the page table. With more held tokens, attention takes the device longer than eager
launches take the host, so a replay would save nothing."""


class GraphSlots:
    """The slots that a replayed forward reads and writes; all graphs share these arrays.

    Args:
        tokens: of the largest graph.

    Attributes:
        page_table: int32 `[HELD_TOKENS]`: the slots of all held prefixes, group after group.
    """

    def __init__(self, pool: KVPool, tokens: int, device: torch.device) -> None:
        self.page_table = torch.zeros(HELD_TOKENS, dtype=torch.int32, device=device)
        self._pool = pool
        self._stores, self._nobodys = torch.zeros((2, tokens), dtype=torch.int64, device=device)
        self._num_stores = 0

    def bring(self, plan: ForwardPlan) -> None:
        """Write a forward's slots for the next replay; launches nothing if there are none."""
        held = held_slots(plan.held)
        if held is not None:
            self.page_table[: len(held)].copy_(held)
        parts: list[Tensor] = []
        end = 0
        for start, slots in zip(plan.layout.group_starts.tolist(), plan.stores, strict=True):
            if slots is not None:
                parts += [self._nobodys[: start - end], slots]
                end = start + len(slots)
        stop = max(end, self._num_stores)  # also overwrite the slots of the forward before
        if stop:
            parts.append(self._nobodys[: stop - end])
            torch.cat(parts, out=self._stores[:stop])
        self._num_stores = end

    def exchange(self, layer: int, k: Tensor, v: Tensor) -> HeldKV:
        """Store K/V of all tokens of a layer, then return the layer's buffers in the pool.

        K/V that are not kept go to slot 0. This runs within a capture.
        """
        self._pool.store(layer, self._stores[: len(k)], k, v)
        return self._pool.buffers(layer)
