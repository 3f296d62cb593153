"""The answer to one packed request, as it travels."""

from __future__ import annotations

import msgspec

from sglang_prefill_ext.wire.packed import Float32Array, values_from_bytes
from sglang_prefill_ext.wire.status import Status


class PackedResult(msgspec.Struct, frozen=True):
    """How a packed request ended.

    Attributes:
        message: why, unless the status is OK.
        values: float32 bytes, see `PackedRows`; empty unless the status is OK.
        forwards, tokens_computed: what it took.
        queue_ms, compute_ms: from its arrival to the first launch, and from there to its end.
        retry_after_s: estimates, for a rejected request, when there will be room; 0 if unknown.
        tokens_cached: tokens of the prefix that the prefix cache had when a forward was launched.
        longest_row: most tokens of a row that a forward has room for, if one of these has more.
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

    def row_values(self) -> Float32Array:
        """The values, read-only and not copied."""
        return values_from_bytes(self.values)
