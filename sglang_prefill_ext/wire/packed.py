"""The packed request (all rows in flat arrays), the packed result, and the bytes of both.

::

    tokens       [prefix][suffix of row 0][suffix of row 1]...           int32
    suffix_lens  one length (tokens, >= 1) a row                         int32
    read_lens    how many last tokens of each row are read; empty: one   int32
    overrides    embeddings that negative token ids name                 float16 or float32

Reads come in the order of their tokens: the last `prefix_reads` tokens of the prefix, then those of
row 0, of row 1, ... Module `read` defines what a read asks for, and how the answer is laid out.

A round trip through bytes copies nothing on the reading side.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.wire.arrays import (
    NO_INTS,
    NO_OVERRIDES,
    Float32Array,
    Int32Array,
    OverrideArray,
    bounds_of,
    from_bytes,
    overrides_from_bytes,
    values_from_bytes,
)
from sglang_prefill_ext.wire.read import Read, require_made
from sglang_prefill_ext.wire.sampling import Sampling
from sglang_prefill_ext.wire.status import Status

# For short arrays these take half the time of the methods, which handle many more arguments.
_least, _sum = np.minimum.reduce, np.add.reduce


@dataclass(frozen=True, slots=True)
class PackedRows:
    """All rows of one request (see the module for the layout).

    All rows are computed with the LoRA adapter whose id is `adapter`, or without one if that is
    empty.

    Raises:
        PackingError: the arrays contradict each other.
    """

    tokens: Int32Array
    prefix_len: int
    suffix_lens: Int32Array
    read: Read
    read_lens: Int32Array = field(default_factory=lambda: NO_INTS)
    prefix_reads: int = 0
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
        self.read.check(self.num_reads, self.num_rows, row_ends=self.reads_row_ends)

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
    def num_values(self) -> int:
        """Values in the answer."""
        return self.read.num_values(self.num_reads)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens that the rows have as separate prompts, which is what users are billed for."""
        return len(self.tokens) + (self.num_rows - 1) * self.prefix_len

    def tokens_saved(self, computed: int) -> int:
        """How many tokens more separate prompts would have computed; 0 if retries used them up."""
        return max(0, self.num_prompt_tokens - computed)

    def read_starts(self) -> NDArray[np.int64]:
        """Index of each row's first read, then the number of all reads; int64 ``[rows + 1]``."""
        if not len(self.read_lens):
            return np.arange(self.prefix_reads, self.prefix_reads + self.num_rows + 1)
        return self.prefix_reads + bounds_of(self.read_lens)

    @property
    def _reads_exist(self) -> bool:
        if not 0 <= self.prefix_reads <= self.prefix_len:
            return False
        if not len(self.read_lens):
            return True
        if len(self.read_lens) != self.num_rows:
            return False
        return bool(((self.read_lens >= 1) & (self.read_lens <= self.suffix_lens)).all())


_Overrides: TypeAlias = tuple[bytes, str, int]
_Fields: TypeAlias = tuple[Int32Array, int, Int32Array, Read, Int32Array, int, _Overrides, str]
_fields_of = attrgetter(*(field.name for field in fields(PackedRows)))


def to_bytes(rows: PackedRows) -> bytes:
    return _encode(_fields_of(rows))


def rows_from_bytes(data: bytes, widths: tuple[int, int] | None = None) -> PackedRows:
    """Return what `to_bytes` was given; its arrays are read-only, and not copied again.

    Args:
        widths: of the model's vectors and of its hidden states, for `Vectors.of_width`.

    Raises:
        PackingError: the bytes are something else, or contradict each other; or the model does not
            make what is read.
    """
    try:
        values = _decode(data)
    except msgspec.MsgspecError as error:
        raise PackingError(f"packed rows cannot be read: {error}") from error
    tokens, prefix_len, suffix_lens, read, read_lens, prefix_reads, overrides, adapter = values
    if widths is not None:
        read = read.of_width(*widths)
        require_made(read, sum(widths))
    parts = tokens, prefix_len, suffix_lens, read, read_lens, prefix_reads
    return PackedRows(*parts, overrides_from_bytes(*overrides), adapter)


def head_of(data: bytes) -> tuple[Int32Array, int, str]:
    """Return only tokens, `prefix_len` and adapter of what `to_bytes` was given, unchecked."""
    tokens, prefix_len, *_, adapter = msgspec.msgpack.decode(data)
    return from_bytes(tokens), prefix_len, adapter


def _simple(value: Any) -> Any:
    if isinstance(value, Sampling):
        return value.draws.tobytes(), value.biases.tobytes()
    if value.ndim == 2:
        return value.tobytes(), value.dtype.name if len(value) else "", value.shape[1]
    return value.tobytes()


def _array(kind: Any, value: Any) -> Sampling | Int32Array:
    return Sampling.from_bytes(*value) if kind is Sampling else from_bytes(value)


_encode = msgspec.msgpack.Encoder(enc_hook=_simple).encode
_decode = msgspec.msgpack.Decoder(_Fields, dec_hook=_array).decode


class PackedResult(msgspec.Struct, frozen=True):
    """How a packed request ended.

    Attributes:
        message: why, unless the status is OK.
        values: float32 bytes, see module `read`; empty unless the status is OK.
        forwards, tokens_computed: how many the request took.
        queue_ms, compute_ms: from its arrival to the first launch, and from there to its end.
        retry_after_s: for a rejected request, estimated time until there is room; 0 if unknown.
        tokens_cached: tokens of the prefix that the prefix cache had when a forward was launched.
        longest_row: if a row is too long for any forward, the most tokens that one may have.
        no_cache: the engine keeps no prefix for later requests, so none will find any.
    """

    status: Status
    message: str = ""
    values: bytes = b""
    forwards: int = 0
    tokens_computed: int = 0
    queue_ms: float = 0.0
    compute_ms: float = 0.0
    retry_after_s: float = 0.0
    tokens_cached: int = 0
    longest_row: int = 0
    no_cache: bool = False

    def row_values(self) -> Float32Array:
        """The values, read-only and not copied."""
        return values_from_bytes(self.values)
