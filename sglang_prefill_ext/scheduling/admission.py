"""Which requests may still join the queue; pure."""

from __future__ import annotations

from dataclasses import dataclass, fields

from sglang_prefill_ext.wire.packed import PackedRows


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """What waits, or what one request would add to it.

    Attributes:
        tokens: still to be computed.
        rows: of all requests.
        bytes: of the requests' arrays, their labels repeated for every row.
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


def load_of(rows: PackedRows) -> QueueLoad:
    """Return the load of a request that just came; looks at lengths only."""
    numbers = len(rows.tokens) + 2 * rows.num_reads + rows.num_values
    num_bytes = numbers * rows.tokens.itemsize + rows.overrides.nbytes
    return QueueLoad(len(rows.tokens), rows.num_rows, num_bytes)


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Most that may wait, in the units of `QueueLoad`."""

    tokens: int
    rows: int
    bytes: int

    def refusal(self, waiting: QueueLoad, request: QueueLoad) -> str:
        """Return why a request may not join what waits; empty if it may.

        Where nothing waits every request may, as a larger one could never be served otherwise.
        """
        if waiting == QueueLoad():
            return ""
        after = waiting + request
        for limit in fields(self):
            most, would_be = getattr(self, limit.name), getattr(after, limit.name)
            if would_be > most:
                return (
                    f"The server is busy: {would_be} {limit.name} would wait, "
                    f"the limit is {most}. Try again later."
                )
        return ""


def retry_after_s(waiting: QueueLoad, tokens_per_s: float) -> float:
    """Estimate in how many seconds what waits now will be computed; 0 if no rate is known."""
    return waiting.tokens / tokens_per_s if tokens_per_s > 0 else 0.0
