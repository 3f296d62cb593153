"""Embeddings that stand where a token's own would, and their byte form.

A packed request has them in one table, and a negative token id names a row of it: `~id`, so -1 is
row 0. Equal rows have one id, which `distinct_overrides` sees to; whatever compares token ids then
tells prompts apart by their embeddings as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.errors import PackingError

OverrideArray: TypeAlias = NDArray[np.floating]
"""``[n, hidden]``, float16 or float32, little-endian."""

DTYPES = ("float16", "float32")

NO_OVERRIDES: OverrideArray = np.empty((0, 0), dtype=np.float32)

_BOUNDS = {"float16": 2.0**16 - 2.0**4, "bfloat16": 2.0**128 - 2.0**119}


@dataclass(frozen=True, slots=True)
class EmbeddingKind:
    """What a model's embeddings are, and so those that stand in their place.

    Attributes:
        width: numbers of an embedding.
        dtype: that the model computes in: "float32", "float16" or "bfloat16".
    """

    width: int
    dtype: str

    @property
    def bound(self) -> float:
        """Numbers of this size and larger ones are rounded to infinity, as ties are to even."""
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
        PackingError: these bytes are no such table.
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


def is_override(ids: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Which ids name a row of the table."""
    return ids < 0


def overrides_of(
    segments: Sequence[tuple[NDArray[np.int32], OverrideArray]],
) -> tuple[NDArray[np.int64], OverrideArray]:
    """Return what stands where in token ids that are joined, each with a table of its own.

    Returns:
        Ascending places in the joined ids, int64 ``[n]``; the embeddings there, ``[n, hidden]``.
    """
    places, embeds = [], []
    start = 0
    for ids, table in segments:
        if len(table):
            inside = np.flatnonzero(is_override(ids))
            places.append(start + inside)
            embeds.append(table[~ids[inside]])
        start += len(ids)
    if not places:
        return np.empty(0, dtype=np.int64), NO_OVERRIDES
    return np.concatenate(places), np.concatenate(embeds)
