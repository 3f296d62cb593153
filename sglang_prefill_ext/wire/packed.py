"""Rows of one request as flat arrays, and their byte form.

::

    tokens       [prefix][suffix of row 0][suffix of row 1]...           int32
    suffix_lens  one length (tokens, >= 1) a row                         int32
    label_ids    label ids of row 0, of row 1, ...; or one shared list   int32
    label_lens   one count (>= 1) a row; empty: `label_ids` is shared    int32

A request reads labels, or a vector of every row; then it has no labels.

Bytes are little-endian. A round trip through bytes copies nothing on the reading side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.errors import PackingError

Int32Array: TypeAlias = NDArray[np.int32]
Float32Array: TypeAlias = NDArray[np.float32]

WHOLE_VECTOR = -1
"""`PackedRows.vector_width` of a request that does not know how wide the model's vectors are."""

_INT = np.dtype("<i4")
_FLOAT = np.dtype("<f4")


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


@dataclass(frozen=True, slots=True)
class PackedRows:
    """All rows of one request (see the module for the layout).

    Where labels are read, the answer holds log-probs over the vocabulary if `normalised`, else
    logits, of which only the differences within a row mean something; a softmax over a row's
    labels needs no more. With a `vector_width` it holds so many numbers of the vector that the
    model makes of every row.

    Raises:
        PackingError: the arrays contradict each other.
    """

    tokens: Int32Array
    prefix_len: int
    suffix_lens: Int32Array
    label_ids: Int32Array
    label_lens: Int32Array
    normalised: bool = True
    vector_width: int = 0

    def __post_init__(self) -> None:
        if not len(self.suffix_lens) or int(self.suffix_lens.min()) < 1 or self.prefix_len < 0:
            raise PackingError("packed rows need at least one row, each with a suffix token")
        if len(self.tokens) != self.prefix_len + int(self.suffix_lens.sum()):
            raise PackingError("packed tokens do not add up to the prefix and the suffixes")
        if self.vector_width:
            consistent = not len(self.label_ids) and not len(self.label_lens)
        elif self.shared_labels:
            consistent = len(self.label_ids) > 0
        else:
            consistent = (
                len(self.label_lens) == self.num_rows
                and int(self.label_lens.min()) > 0
                and int(self.label_lens.sum()) == len(self.label_ids)
            )
        if not consistent:
            raise PackingError("packed labels do not fit the rows")

    @property
    def num_rows(self) -> int:
        return len(self.suffix_lens)

    @property
    def shared_labels(self) -> bool:
        return not len(self.label_lens)

    @property
    def num_values(self) -> int:
        """Values in the answer, row by row."""
        return self.values_per_row * self.num_rows if self.shared_labels else len(self.label_ids)

    @property
    def values_per_row(self) -> int:
        """Values of every row, where all have equally many."""
        assert self.shared_labels, "rows have labels of their own"
        return self.vector_width or len(self.label_ids)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens that the rows have as separate prompts, which is what users are billed for."""
        return self.num_rows * self.prefix_len + int(self.suffix_lens.sum())

    def labels_of(self, first: int, last: int) -> tuple[Int32Array, Int32Array]:
        """Return label ids and value counts of ``first <= row < last``, shared ones repeated."""
        if self.shared_labels:
            rows = last - first
            counts = np.full(rows, self.values_per_row, dtype=_INT)
            return np.tile(self.label_ids, rows), counts
        start, stop = int(self.label_lens[:first].sum()), int(self.label_lens[:last].sum())
        return self.label_ids[start:stop], self.label_lens[first:last]
