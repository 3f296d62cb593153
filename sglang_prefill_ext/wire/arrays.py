"""The array types of packed messages, and their little-endian bytes.

A request may bring embeddings ("overrides") that replace those of some of its tokens. A packed
request has them in one table, and a negative token id names a row of it: `~id`, so -1 is row 0.
Equal embeddings get one id (`distinct_overrides`), so code that compares token ids also tells
prompts apart by their embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.errors import PackingError

Int32Array: TypeAlias = NDArray[np.int32]
Float32Array: TypeAlias = NDArray[np.float32]
OverrideArray: TypeAlias = NDArray[np.floating]
"""``[n, hidden]``, float16 or float32, little-endian."""

DTYPES = ("float16", "float32")
"""The dtypes that an `OverrideArray` may have."""

_INT = np.dtype("<i4")
_FLOAT = np.dtype("<f4")

NO_INTS: Int32Array = np.empty(0, dtype=_INT)
NO_OVERRIDES: OverrideArray = np.empty((0, 0), dtype=np.float32)

_BOUNDS = {"float16": 2.0**16 - 2.0**4, "bfloat16": 2.0**128 - 2.0**119}


def bounds_of(lens: NDArray[np.integer]) -> NDArray[np.int64]:
    """Where each of several adjacent ranges begins, then where the last one ends.

    int64 ``[ranges + 1]``.
    """
    return np.concatenate(([0], np.cumsum(lens, dtype=np.int64)))


def places_of_ranges(firsts: NDArray[np.int64], lens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Every index that lies in some ranges, range after range; int64 ``[sum(lens)]``.

    Args:
        firsts, lens: where each range begins, and how long it is; int64 ``[ranges]``.
    """
    offsets = np.repeat(firsts - (np.cumsum(lens) - lens), lens)
    places: NDArray[np.int64] = np.arange(len(offsets), dtype=np.int64) + offsets
    return places


@dataclass(frozen=True, slots=True)
class FlatRows:
    """Rows of numbers, of any lengths, in one flat array.

    Attributes:
        values: int32 ``[sum(counts)]``.
        counts: length of each row, int32 ``[rows]``; none is negative.
    """

    values: Int32Array
    counts: Int32Array

    @classmethod
    def joined(cls, rows: Sequence[Int32Array]) -> FlatRows:
        """Put rows, at least one, into one flat array."""
        return cls(np.concatenate(rows), lens_of_rows(rows))

    def __len__(self) -> int:
        return len(self.counts)

    def starts(self) -> NDArray[np.int64]:
        """Where each row begins in `values`, int64 ``[rows]``."""
        ends: NDArray[np.int64] = np.add.accumulate(self.counts, dtype=np.int64)
        return ends - self.counts

    def first(self, count: int) -> FlatRows:
        """The first `count` rows, without copying."""
        counts = self.counts[:count]
        return FlatRows(self.values[: int(counts.sum(dtype=np.int64))], counts)

    def rows(self) -> list[Int32Array]:
        """One array a row, without copying."""
        return np.split(self.values, self.starts()[1:]) if len(self) else []

    def tolist(self) -> list[list[int]]:
        """One list a row."""
        values, bounds = self.values.tolist(), bounds_of(self.counts).tolist()
        return [values[start:end] for start, end in pairwise(bounds)]


def int_array(values: Sequence[int]) -> Int32Array:
    return np.array(values, dtype=_INT)


def lens_of_rows(rows: Sequence[Sized]) -> Int32Array:
    return np.fromiter(map(len, rows), dtype=_INT, count=len(rows))


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


@dataclass(frozen=True, slots=True)
class EmbeddingKind:
    """Width and dtype of a model's embeddings, which overrides have to fit.

    Attributes:
        width: numbers of an embedding.
        dtype: the dtype that the model computes in: "float32", "float16" or "bfloat16".
        with_tokens: the model's layers look the tokens up, too, so that packed forwards can put no
            embedding in the place of one.
    """

    width: int
    dtype: str
    with_tokens: bool = False

    @property
    def bound(self) -> float:
        """The smallest absolute value that `dtype` rounds to infinity (ties go to even)."""
        return _BOUNDS.get(self.dtype, 2.0**128)

    def holds(self, embeds: OverrideArray) -> NDArray[np.bool_]:
        """Bool ``[n]``: whether all numbers of an embedding are finite in this dtype.

        Args:
            embeds: ``[n, width]``, any floating dtype, or int.
        """
        most, least = (pick(embeds, axis=1, initial=0) for pick in (np.max, np.min))
        inside: NDArray[np.bool_] = (
            np.maximum(most.astype(float), -least.astype(float)) < self.bound
        )
        return inside


def overrides_from_bytes(data: bytes, dtype: str, width: int) -> OverrideArray:
    """Read a table without copying; the result is read-only.

    Args:
        width: numbers of an embedding; 0 for an empty table.

    Raises:
        PackingError: the bytes are no such table.
    """
    if not data:
        return NO_OVERRIDES
    row_bytes = np.dtype(dtype).itemsize * width if dtype in DTYPES else 0
    if row_bytes <= 0 or len(data) % row_bytes:
        raise PackingError(f"{len(data)} bytes are no {dtype} embeddings of {width} numbers")
    table: OverrideArray = np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).reshape(-1, width)
    return table


def distinct_overrides(embeds: OverrideArray) -> tuple[OverrideArray, NDArray[np.int64]]:
    """Return the distinct rows in order of first appearance, and the id that names each row.

    Rows are equal if their bytes are: 0.0 and -0.0 count as different, which costs a forward a
    few tokens at most.

    Returns:
        The table, ``[m, hidden]``, and negative ids, int64 ``[n]``.
    """
    numbers: dict[bytes, int] = {}
    number_of = [numbers.setdefault(row.tobytes(), len(numbers)) for row in embeds]
    ids = ~np.array(number_of, dtype=np.int64)
    if len(numbers) == len(embeds):
        return embeds, ids
    return embeds[np.unique(number_of, return_index=True)[1]], ids
