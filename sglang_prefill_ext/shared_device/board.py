"""Numbers that the schedulers of one device tell each other and whoever sends them work."""

from __future__ import annotations

import os
from typing import Self

import numpy as np
from numpy.typing import NDArray

BOARD_VARIABLE = "PREFILL_ONLY_BOARD"
"""Environment variable by which schedulers find the board of the process that starts them."""

_KV_BYTES, _RESERVE_BYTES, _FIRST_DONE = range(3)


class Board:
    """Shared memory of int64: two for the memory of each scheduler, and one for each of them.

    Every number has one writer, so no lock is needed. The memory has no name in any directory
    and ends with the processes that use it.
    """

    def __init__(self, path: str, schedulers: int) -> None:
        """Open the board.

        Args:
            path: of its file, as `path` of the board that was created.
            schedulers: how many there are.

        Raises:
            OSError: there is no such board.
        """
        self.path = path
        shape = _FIRST_DONE + schedulers
        self._numbers = np.memmap(path, dtype=np.int64, mode="r+", shape=shape)

    @classmethod
    def create(cls, schedulers: int) -> Self:
        """Make a board of zeros; it lives as long as this process or anyone who opened it."""
        file = os.memfd_create(BOARD_VARIABLE)
        os.ftruncate(file, (_FIRST_DONE + schedulers) * np.dtype(np.int64).itemsize)
        return cls(f"/proc/{os.getpid()}/fd/{file}", schedulers)

    @classmethod
    def found(cls, schedulers: int) -> Self:
        """Open the board of the process that started this one."""
        return cls(os.environ[BOARD_VARIABLE], schedulers)

    @property
    def kv_bytes(self) -> int:
        """What each scheduler may take for K/V; 0 until the first one has worked it out."""
        return int(self._numbers[_KV_BYTES])

    @kv_bytes.setter
    def kv_bytes(self, value: int) -> None:
        self._numbers[_KV_BYTES] = value

    @property
    def reserve_bytes(self) -> int:
        """What each scheduler may take beside weights and K/V; 0 likewise."""
        return int(self._numbers[_RESERVE_BYTES])

    @reserve_bytes.setter
    def reserve_bytes(self, value: int) -> None:
        self._numbers[_RESERVE_BYTES] = value

    @property
    def done(self) -> NDArray[np.int64]:
        """int64 ``[schedulers]``, live: tokens of the packed requests that each has answered."""
        return self._numbers[_FIRST_DONE:]
