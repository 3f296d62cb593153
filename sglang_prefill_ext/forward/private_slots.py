"""Room for the prefix of one request between its forwards, which nobody else gets to see."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from sglang_prefill_ext.wire.arrays import Int32Array


class Room(Protocol):
    """Hands out slots of a pool."""

    capacity: int
    """Most tokens that can be taken at a time."""

    def take(self, num_tokens: int) -> Tensor | None:
        """Slots for so many tokens, at least 1, int64 on the device; None if there are not as many
        left."""
        ...

    def give_back(self, slots: Tensor) -> None:
        """Free slots that were taken: all of a call, or whole pages at their end."""
        ...


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
    """The `PrefixCache` of a server that caches no prefix, or none that packed work can read."""

    shares = False

    def __init__(self, room: Room) -> None:
        self.room = room
        self.capacity = room.capacity

    def begin(self, prefix: Int32Array, adapter: str = "", *, keep: bool) -> PrivateTransaction:
        return self.begin_private(len(prefix))

    def begin_private(self, num_tokens: int) -> PrivateTransaction:
        return PrivateTransaction(self.room, num_tokens)

    def cached_tokens(self, prefix: Int32Array, adapter: str = "") -> int:
        return 0
