"""How large one forward may be, what it costs, and how much may wait."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.wire.packed import PackedRows

UNLIMITED = 1 << 62

Counts = TypeVar("Counts", int, NDArray[np.int64])


@dataclass(frozen=True, slots=True)
class ForwardBudget:
    """Most tokens of one forward, and most bytes of its temporary memory.

    Memory is modelled as ``bytes_per_token * tokens + bytes_per_row * rows``, whole numbers that
    are the same on every tensor-parallel rank; `calibration.calibrate` measures them. K/V that a
    divided request holds from one forward to the next lie in the KV pool, or in memory that was
    set aside before (`kv_pool`).

    Args:
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

    def num_bytes(self, tokens: Counts, rows: Counts) -> Counts:
        """Temporary memory that the model expects of one forward, or of several, in bytes."""
        return self.bytes_per_token * tokens + self.bytes_per_row * rows

    def longest_chunk(self, *, all_read: bool) -> int:
        """Most tokens of a forward that computes a chunk of a prefix, read or not, and no row."""
        bytes_per_token = self.num_bytes(1, int(all_read))
        if not bytes_per_token:
            return self.max_tokens
        return min(self.max_tokens, self.max_bytes // bytes_per_token)

    @property
    def longest_row(self) -> int:
        """Most tokens of a row after its prefix: a longer row fits no forward."""
        return self.room(0, 1)

    def room(self, tokens: int, rows: int) -> int:
        """How many tokens may be added to a forward that fits."""
        if not self.bytes_per_token:
            return self.max_tokens - tokens
        left = self.max_bytes - self.num_bytes(tokens, rows)
        return min(self.max_tokens - tokens, left // self.bytes_per_token)


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """The size of all that waits, or what one request would add to it.

    Attributes:
        tokens: still to be computed.
        rows: of all requests.
        bytes: of the requests' arrays, with their labels counted once for every row.
    """

    tokens: int = 0
    rows: int = 0
    bytes: int = 0

    def __add__(self, other: QueueLoad) -> QueueLoad:
        return QueueLoad(
            self.tokens + other.tokens, self.rows + other.rows, self.bytes + other.bytes
        )

    def __sub__(self, other: QueueLoad) -> QueueLoad:
        return QueueLoad(
            self.tokens - other.tokens, self.rows - other.rows, self.bytes - other.bytes
        )


def load_of(rows: PackedRows, num_values: int | None = None) -> QueueLoad:
    """Return the load of a request that just came; looks at lengths only.

    Args:
        num_values: of the answer, if `rows.num_values` does not know them yet.
    """
    values = rows.num_values if num_values is None else num_values
    numbers = len(rows.tokens) + 2 * rows.num_reads + values
    num_bytes = numbers * rows.tokens.itemsize + rows.overrides.nbytes
    return QueueLoad(len(rows.tokens), rows.num_rows, num_bytes)


def limits_of(config: PrefillOnlyConfig) -> QueueLoad:
    """Return the most that may wait."""
    return QueueLoad(
        tokens=config.max_queued_tokens,
        rows=config.max_queued_rows,
        bytes=config.max_queued_mib << 20,
    )


def refusal(limits: QueueLoad, waiting: QueueLoad, request: QueueLoad) -> str:
    """Return why a request may not join what waits; empty if it may.

    If nothing waits, every request may join: one above the limits could never be served otherwise.
    """
    if waiting == QueueLoad():
        return ""
    after = waiting + request
    for limit in fields(limits):
        most, would_be = getattr(limits, limit.name), getattr(after, limit.name)
        if would_be > most:
            return (
                f"The server is busy: {would_be} {limit.name} would wait, "
                f"the limit is {most}. Try again later."
            )
    return ""


def retry_after_s(waiting: QueueLoad, tokens_per_s: float) -> float:
    """Estimate in how many seconds what waits now will be computed; 0 if no rate is known."""
    return waiting.tokens / tokens_per_s if tokens_per_s > 0 else 0.0
