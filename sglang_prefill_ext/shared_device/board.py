"""Shared memory by which the schedulers of one device and their controller exchange numbers."""

from __future__ import annotations

import os
from typing import Self

import numpy as np
from numpy.typing import NDArray

BOARD_VARIABLE = "PREFILL_ONLY_BOARD"
"""Environment variable with the path of the board, set by the process that starts schedulers."""

_KV_BYTES, _RESERVE_BYTES, _FIRST_DONE = range(3)


class Board:
    """Shared memory of int64 numbers: `kv_bytes`, `reserve_bytes`, and `done` of each scheduler.

    Every number has one writer, so no lock is needed. The memory has no name in any directory, and
    is freed when the last process that uses it ends.
    """

    def __init__(self, path: str, schedulers: int) -> None:
        """Open the board.

        Args:
            path: `path` of the board that was created.
            schedulers: number of schedulers.

        Raises:
            OSError: there is no such board.
        """
        self.path = path
        shape = _FIRST_DONE + schedulers
        self._numbers = np.memmap(path, dtype=np.int64, mode="r+", shape=shape)

    @classmethod
    def create(cls, schedulers: int) -> Self:
        """Make a board of zeros; it exists until this process and all that opened it have ended."""
        file = os.memfd_create(BOARD_VARIABLE)
        return cls(f"/proc/{os.getpid()}/fd/{file}", schedulers)

    @classmethod
    def found(cls, schedulers: int) -> Self:
        """Open the board of the process that started this one."""
        return cls(os.environ[BOARD_VARIABLE], schedulers)

    @property
    def kv_bytes(self) -> int:
        """Bytes that each scheduler may take for K/V; 0 before the first one has written it."""
        return int(self._numbers[_KV_BYTES])

    @property
    def reserve_bytes(self) -> int:
        """Bytes that each scheduler may take beside weights and K/V; 0 before it is written."""
        return int(self._numbers[_RESERVE_BYTES])

    def set_shares(self, kv_bytes: int, reserve_bytes: int) -> None:
        """Write `kv_bytes` and `reserve_bytes`; only the first scheduler does."""
        self._numbers[:_FIRST_DONE] = kv_bytes, reserve_bytes

    @property
    def done(self) -> NDArray[np.int64]:
        """int64 ``[schedulers]``, a view: tokens of the packed requests that each has answered."""
        return self._numbers[_FIRST_DONE:]
