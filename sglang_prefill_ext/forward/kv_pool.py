"""KV pools as packed forwards use them, and the allocation of their slots to prefixes.

`KVPool` and `Room` are implemented for SGLang's pool (`border/model/kv_pool.py`) and by `OwnPool`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from sglang_prefill_ext.attention.inputs import HeadShape, HeldKV
from sglang_prefill_ext.recurrent.layers import HeldStates
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.wire.arrays import Int32Array
from sglang_prefill_ext.wire.packed import PackedRows

SHARE = 4
"""If a pool sets memory for forwards aside, it is one part in so many."""


def share_of(budget: ForwardBudget) -> tuple[int, ForwardBudget]:
    """Return the bytes that a pool sets aside, and the budget that is left to forwards."""
    share = budget.max_bytes // SHARE
    return share, replace(budget, max_bytes=budget.max_bytes - share)


class KVPool(Protocol):
    """Memory for K/V of all layers, in slots of one token each.

    Only the owner of a slot writes to it. Slot 0 belongs to nobody: anyone may write to it, and its
    values are never used.
    """

    @property
    def keeps_latents(self) -> bool:
        """Whether it keeps `Latents` in place of K/V: rows ``[slots, 1, R + r]`` as keys, of which
        the values are a part."""

    @property
    def states(self) -> HeldStates:
        """What recurrent layers carry behind the held prefix, of which such a pool has one."""

    def set_aside(self, budget: ForwardBudget) -> ForwardBudget:
        """Take what held prefixes need of the memory for forwards; return what is left to these."""

    def buffers(self, layer: int) -> HeldKV:
        """Keys ``[slots, KH, D]`` and values ``[slots, KH, Dv]`` of a layer: the memory itself,
        at the same addresses for as long as the pool lives."""

    def store(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Write to slots of a layer.

        Args:
            slots: int64 ``[n]``; only slot 0 may be among them more than once.
            k: ``[n, KH, D]``; v: ``[n, KH, Dv]``; contiguous in the last dimension.
        """


class OwnPool:
    """`KVPool` and `Room` for one prefix at a time; memory is allocated while slots are taken.

    It is used if SGLang's pool keeps K/V in another precision or layout, or fewer tokens in some
    layers, so that packed forwards cannot write to it; and if the model has recurrent layers.

    Args:
        heads: of every layer of attention, by its number.
        dtype: of keys and values.
        state_bytes: what recurrent layers carry behind a prefix.
    """

    keeps_latents = False

    def __init__(
        self,
        heads: Mapping[int, HeadShape],
        dtype: torch.dtype,
        device: torch.device,
        state_bytes: int = 0,
    ) -> None:
        self.capacity = 0
        """Tokens; 0 before `set_aside`."""
        self.states: HeldStates = {}
        self._state_bytes = state_bytes
        self._shapes = {
            layer: [(own.num_key_heads, dim) for dim in (own.head_dim, own.value_dim)]
            for layer, own in heads.items()
        }
        numbers = sum(count * dim for shapes in self._shapes.values() for count, dim in shapes)
        self.bytes_per_token = numbers * dtype.itemsize
        self._dtype, self._device = dtype, device
        self._layers: dict[int, HeldKV] = {}
        self._taken = 0

    def set_aside(self, budget: ForwardBudget) -> ForwardBudget:
        own_bytes, left = share_of(budget)
        self.capacity = max(0, own_bytes - self._state_bytes) // self.bytes_per_token
        return left

    def is_short(self) -> bool:
        return False

    def take(self, num_tokens: int) -> Tensor | None:
        if self._taken or num_tokens > self.capacity:
            return None
        self._taken = num_tokens
        return torch.arange(num_tokens, device=self._device)

    def give_back(self, slots: Tensor) -> None:
        self._taken = 0
        self._layers.clear()
        self.states.clear()

    def buffers(self, layer: int) -> HeldKV:
        if layer not in self._layers:
            keys, values = (
                torch.empty((self._taken, *shape), dtype=self._dtype, device=self._device)
                for shape in self._shapes[layer]
            )
            self._layers[layer] = keys, values
        return self._layers[layer]

    def store(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        keys, values = self.buffers(layer)
        keys[slots], values[slots] = k, v


class Room(Protocol):
    """Hands out slots of a pool."""

    @property
    def capacity(self) -> int:
        """Most tokens that can be taken at a time."""

    def is_short(self) -> bool:
        """Whether others may lack slots that forwards in flight have, or keep from eviction."""

    def take(self, num_tokens: int) -> Tensor | None:
        """Take slots for at least 1 token, int64 on the device; None if too few are left."""

    def give_back(self, slots: Tensor) -> None:
        """Free slots that one `take` returned: all of them, or whole pages at their end."""


class PrivateTransaction:
    """A `PrefixTransaction` that matches and keeps nothing."""

    cached = 0

    def __init__(self, room: Room, num_tokens: int) -> None:
        self._room = room
        self._num_tokens = num_tokens
        self.slots = torch.empty(0, dtype=torch.int64)

    def reserve(self, *, whole: bool) -> bool:
        slots = self._room.take(self._num_tokens) if whole else None
        if slots is not None:
            self.slots = slots
        return slots is not None or not whole

    def commit(self) -> None:
        self.rollback()

    def rollback(self) -> None:
        if len(self.slots):
            self._room.give_back(self.slots)


class PrivateSlots:
    """The `PrefixCache` of a server whose radix cache is off, or not usable by packed forwards.

    It only holds prefixes of divided requests between their forwards.
    """

    shares, page_tokens = False, 1

    def __init__(self, room: Room) -> None:
        self.room = room
        self.capacity = room.capacity

    def begin(self, prefix: Int32Array, adapter: str = "", *, keep: bool) -> PrivateTransaction:
        return self.begin_private(len(prefix))

    def begin_row(self, beginning: Int32Array, adapter: str = "") -> PrivateTransaction:
        return self.begin_private(len(beginning))

    def begin_private(self, num_tokens: int) -> PrivateTransaction:
        return PrivateTransaction(self.room, num_tokens)

    def rows_seen(self, rows: PackedRows, least: int) -> None:
        return None

    def cached_tokens(self, prefix: Int32Array, adapter: str = "") -> int:
        return 0
