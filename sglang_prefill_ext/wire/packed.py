"""Rows of one request as flat arrays, and their byte form.

::

    tokens       [prefix][suffix of row 0][suffix of row 1]...           int32
    suffix_lens  one length (tokens, >= 1) a row                         int32
    read_lens    last tokens of each row that are read; empty: one each  int32
    label_ids    label ids of read 0, of read 1, ...; or one shared list int32
    label_lens   one count a read, of labels or, 0 or 1, of vectors;     int32
                 empty: `label_ids` is shared, every read has a vector
    overrides    embeddings that negative token ids name                 float16 or float32

A *read* is a token after which something is asked about the next one. Reads come in the order of
their tokens: the last `prefix_reads` tokens of the prefix, then those of row 0, of row 1, ...

A request reads labels, the most probable tokens, or both; or vectors. Where more is read than the
ends of rows, reads may have no labels, or no vector. These cost no logits; between others they let
tokens be read that do not follow one another.

Bytes are little-endian. A round trip through bytes copies nothing on the reading side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.wire.overrides import NO_OVERRIDES, OverrideArray
from sglang_prefill_ext.wire.sampling import NO_SAMPLING, Sampling

Int32Array: TypeAlias = NDArray[np.int32]
Float32Array: TypeAlias = NDArray[np.float32]

WHOLE_VECTOR = -1
"""`PackedRows.vector_width` of a request that does not know how wide the model's vectors are."""

VECTOR_AND_STATE = -2
"""Likewise, with the hidden state behind each vector of which a head made it, if one did."""

_INT = np.dtype("<i4")
_FLOAT = np.dtype("<f4")


NO_INTS: Int32Array = np.empty(0, dtype=_INT)

# Of short arrays in half the time of the methods, which look at many more arguments.
_least, _sum = np.minimum.reduce, np.add.reduce


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

    For every read the answer holds the values of its labels: log-probs over the vocabulary if
    `normalised`, else logits, of which only the differences within a read mean something; a
    softmax over the labels needs no more. Behind them come, with `num_best` > 0, the log-prob and
    the id of the most probable token, then the log-probs of the `num_best - 1` most probable
    tokens, and then their ids. With a `vector_width` it holds so many numbers of the vector that
    the model makes of every read.

    With `sampling`, of every row, it is otherwise at the last token of a row: the token named
    first is one that was drawn, and log-probs are those that it was drawn by (SGLang's: after
    biases and temperature, before tokens are left out).

    All rows are computed with the LoRA adapter of the id `adapter`, or with the model as it is
    where that is empty.

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
    read_lens: Int32Array = field(default_factory=lambda: NO_INTS)
    prefix_reads: int = 0
    num_best: int = 0
    sampling: Sampling = NO_SAMPLING
    overrides: OverrideArray = field(default_factory=lambda: NO_OVERRIDES)
    adapter: str = ""

    def __post_init__(self) -> None:
        if not len(self.suffix_lens) or _least(self.suffix_lens) < 1 or self.prefix_len < 0:
            raise PackingError("packed rows need at least one row, each with a suffix token")
        if len(self.tokens) != self.prefix_len + _sum(self.suffix_lens, dtype=np.int64):
            raise PackingError("packed tokens do not add up to the prefix and the suffixes")
        if _least(self.tokens) < -len(self.overrides):
            raise PackingError("packed tokens name embeddings that there are not")
        if not self._reads_exist:
            raise PackingError("packed reads do not fit the rows")
        if len(self.sampling) and (len(self.sampling) != self.num_rows or not self.num_best):
            raise PackingError("packed draws do not fit the rows")
        if self.vector_width:
            consistent = not len(self.label_ids) and not self.num_best and self._vectors_fit
        elif self.shared_labels:
            consistent = len(self.label_ids) > 0 or self.num_best > 0
        else:
            consistent = (
                len(self.label_lens) == self.num_reads
                and int(self.label_lens.min()) >= (self.reads_row_ends and not self.num_best)
                and int(self.label_lens.sum()) == len(self.label_ids)
                and (len(self.label_ids) > 0 or self.num_best > 0)
            )
        if not consistent:
            raise PackingError("packed labels do not fit the reads")

    @property
    def num_rows(self) -> int:
        return len(self.suffix_lens)

    @property
    def reads_row_ends(self) -> bool:
        """Whether there is one read a row, at its last token."""
        return not len(self.read_lens) and not self.prefix_reads

    @property
    def num_reads(self) -> int:
        rows = int(self.read_lens.sum()) if len(self.read_lens) else self.num_rows
        return self.prefix_reads + rows

    @property
    def shared_labels(self) -> bool:
        return not len(self.label_lens)

    @property
    def num_values(self) -> int:
        """Values in the answer, read by read."""
        if self.shared_labels:
            return self.values_per_read * self.num_reads
        if self.vector_width:
            return self.vector_width * int(self.label_lens.sum())
        return len(self.label_ids) + 2 * self.num_best * self.num_reads

    @property
    def values_per_read(self) -> int:
        """Values of every read, where all have equally many."""
        assert self.shared_labels, "reads have labels of their own"
        return (self.vector_width or len(self.label_ids)) + 2 * self.num_best

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens that the rows have as separate prompts, which is what users are billed for."""
        return len(self.tokens) + (self.num_rows - 1) * self.prefix_len

    def tokens_saved(self, computed: int) -> int:
        """Tokens that separate prompts would have added; 0 where starting over took them."""
        return max(0, self.num_prompt_tokens - computed)

    def read_starts(self) -> NDArray[np.int64]:
        """int64 ``[rows + 1]``: number of each row's first read, and of all reads."""
        if not len(self.read_lens):
            return np.arange(self.prefix_reads, self.prefix_reads + self.num_rows + 1)
        ends = np.cumsum(self.read_lens, dtype=np.int64)
        return self.prefix_reads + np.concatenate(([0], ends))

    def labels_of(self, first: int, last: int) -> tuple[Int32Array, Int32Array]:
        """Return label ids and counts of ``first <= read < last``, shared ones repeated.

        Where vectors are read, what is counted is their numbers.
        """
        if self.shared_labels:
            reads = last - first
            counts = np.full(reads, self.vector_width or len(self.label_ids), dtype=_INT)
            return self.label_ids if reads == 1 else np.tile(self.label_ids, reads), counts
        if self.vector_width:
            return self.label_ids, self.label_lens[first:last] * _INT.type(self.vector_width)
        start, stop = int(self.label_lens[:first].sum()), int(self.label_lens[:last].sum())
        return self.label_ids[start:stop], self.label_lens[first:last]

    @property
    def _vectors_fit(self) -> bool:
        if self.shared_labels:
            return self.reads_row_ends
        counts = self.label_lens
        if self.reads_row_ends or len(counts) != self.num_reads:
            return False
        return bool(((counts == 0) | (counts == 1)).all() and counts.any())

    @property
    def _reads_exist(self) -> bool:
        if not 0 <= self.prefix_reads <= self.prefix_len or self.num_best < 0:
            return False
        if not len(self.read_lens):
            return True
        if len(self.read_lens) != self.num_rows:
            return False
        return bool(((self.read_lens >= 1) & (self.read_lens <= self.suffix_lens)).all())
