"""Arrays of what travels, and their bytes, which are little-endian."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.errors import PackingError

Int32Array: TypeAlias = NDArray[np.int32]
Float32Array: TypeAlias = NDArray[np.float32]

_INT = np.dtype("<i4")
_FLOAT = np.dtype("<f4")

NO_INTS: Int32Array = np.empty(0, dtype=_INT)


def bounds_of(lens: NDArray[np.integer]) -> NDArray[np.int64]:
    """Where each of some ranges begins, and where the last one ends; int64 ``[ranges + 1]``."""
    return np.concatenate(([0], np.cumsum(lens, dtype=np.int64)))


def places_of_ranges(firsts: NDArray[np.int64], lens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Every place of some ranges, one range behind the other; int64 ``[sum(lens)]``.

    Args:
        firsts, lens: where each begins, and how long it is; int64 ``[ranges]``.
    """
    offsets = np.repeat(firsts - (np.cumsum(lens) - lens), lens)
    places: NDArray[np.int64] = np.arange(len(offsets), dtype=np.int64) + offsets
    return places


def int_array(values: Sequence[int]) -> Int32Array:
    return np.array(values, dtype=_INT)


def from_bytes(data: bytes) -> Int32Array:
    """Read an int32 array without copying; the result is read-only."""
    if len(data) % _INT.itemsize:
        raise PackingError(f"an int32 array cannot have {len(data)} bytes")
    return np.frombuffer(data, dtype=_INT)


def values_to_bytes(values: Float32Array) -> bytes:
    return np.ascontiguousarray(values, dtype=_FLOAT).tobytes()


def values_from_bytes(data: bytes) -> Float32Array:
    """Read a float32 array without copying; the result is read-only."""
    if len(data) % _FLOAT.itemsize:
        raise PackingError(f"a float32 array cannot have {len(data)} bytes")
    return np.frombuffer(data, dtype=_FLOAT)
