"""How large one forward may be: in tokens, and in the memory that it takes while it runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sglang_prefill_ext.errors import ConfigError

UNLIMITED = 1 << 62

SAFETY = 1.25
"""Measured memory is multiplied by this: layouts differ from those that were measured."""


@dataclass(frozen=True, slots=True)
class ForwardBudget:
    """Most tokens of one forward, and most bytes of its temporary memory.

    Memory is modelled as ``bytes_per_token * tokens + bytes_per_row * rows``, whole numbers that
    are the same on every tensor-parallel rank; `calibration.calibrate` measures them. K/V that a
    divided request holds from one forward to the next lie in the KV pool, or in memory that was
    set aside before (`kv_pool`).

    Args:
        max_tokens: tokens of one forward, >= 1.
        max_bytes: temporary memory of one forward; unlimited unless given.
        bytes_per_token: activations of one token, >= 0.
        bytes_per_row: what reading one row adds, >= 0.

    Raises:
        ConfigError: not even one row of one token would fit.
    """

    max_tokens: int
    max_bytes: int = UNLIMITED
    bytes_per_token: int = 0
    bytes_per_row: int = 0

    def __post_init__(self) -> None:
        if min(self.bytes_per_token, self.bytes_per_row) < 0 or not self.fits(1, 1):
            raise ConfigError(
                f"a forward budget of max_tokens={self.max_tokens}, max_bytes={self.max_bytes} "
                f"cannot hold one row of one token at bytes_per_token={self.bytes_per_token}, "
                f"bytes_per_row={self.bytes_per_row}; raise the limit or lower the model's rates"
            )

    def fits(self, tokens: int, rows: int) -> bool:
        """Whether a forward of so many tokens and rows is within both limits."""
        return tokens <= self.max_tokens and self.num_bytes(tokens, rows) <= self.max_bytes

    def num_bytes(self, tokens: int, rows: int) -> int:
        """Temporary memory that the model expects, in bytes."""
        return self.bytes_per_token * tokens + self.bytes_per_row * rows

    def longest_chunk(self, *, all_read: bool) -> int:
        """Most tokens of a forward that has no row, and reads nothing or every token."""
        bytes_per_token = self.num_bytes(1, int(all_read))
        if not bytes_per_token:
            return self.max_tokens
        return min(self.max_tokens, self.max_bytes // bytes_per_token)

    @property
    def longest_row(self) -> int:
        """Most tokens of a row whose prefix is held: one longer has no forward to run in."""
        if not self.bytes_per_token:
            return self.max_tokens
        left = self.max_bytes - self.bytes_per_row
        return min(self.max_tokens, left // self.bytes_per_token)


@dataclass(frozen=True, slots=True)
class Sample:
    """What one forward took at its highest, in bytes."""

    tokens: int
    rows: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """Temporary memory that a forward is expected to take at most."""

    fixed_bytes: int
    bytes_per_token: int
    bytes_per_row: int

    def num_bytes(self, tokens: int, rows: int) -> int:
        """Of a forward of so many tokens and rows."""
        return self.fixed_bytes + self.bytes_per_token * tokens + self.bytes_per_row * rows


def fit_memory(some: Sample, most: Sample, most_rows: Sample) -> MemoryModel:
    """Return a model that lies `SAFETY` above forwards of a size between the samples.

    The peak of a forward is the largest of what its layers, its attention and its read-out take.
    Each grows evenly, except that what is done in chunks stops growing at the first whole one.
    Beyond there the peak lies below every straight line between two of its points, hence below
    the model, which is drawn through the samples.

    Args:
        some: a forward that is just large enough for whole chunks.
        most: as many tokens as a forward may have.
        most_rows: as many tokens, and more rows.
    """
    assert some.tokens < most.tokens == most_rows.tokens, (some, most, most_rows)
    more_rows = most_rows.rows - most.rows
    per_row = max(0.0, (most_rows.peak_bytes - most.peak_bytes) / more_rows)
    by_rows = per_row * (most.rows - some.rows)
    more_tokens = most.tokens - some.tokens
    per_token = max(0.0, (most.peak_bytes - some.peak_bytes - by_rows) / more_tokens)
    fixed = max(
        each.peak_bytes - per_token * each.tokens - per_row * each.rows
        for each in (some, most, most_rows)
    )
    rates = (max(0.0, fixed), per_token, per_row)
    return MemoryModel(*(math.ceil(SAFETY * rate) for rate in rates))


_READOUT_BYTES = 64 << 20
_MOST_READOUT_BYTES = 512 << 20
"""Logits in float32 of the largest vocabularies for 500 reads and more: a forward seldom has more
that need them, and the output head, hundreds of MB, is read once for each chunk."""

_READOUT_SHARE = 16


def readout_bytes(asked_mib: int, device_type: str, free: int) -> int:
    """Memory for logits over the vocabulary, which is taken some three times while they are read.

    Args:
        asked_mib: what the operator wants; 0 leaves it to the device.
        device_type: `torch.device.type`.
        free: of the device's memory, in bytes; the same number on every rank.
    """
    if asked_mib:
        return asked_mib << 20
    if device_type != "cuda":
        return _READOUT_BYTES
    return min(max(_READOUT_BYTES, free // _READOUT_SHARE), _MOST_READOUT_BYTES)
