"""Counters of one scheduler: totals of its packed path, and iterations by execution class."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum

from sglang_prefill_ext.wire.status import Status

_RATE_MEMORY_S = 5.0
"""Half-life in the measured rate: after so many busy seconds a forward counts half."""


@dataclass(slots=True)
class RuntimeStats:
    """Totals since the start.

    Attributes:
        forwards: packed forwards launched.
        retried_forwards: forwards of several requests that failed or gave NaN and were split up.
        rows: rows whose read-out was computed.
        tokens_computed: tokens that went through the model.
        tokens_cached: prefix tokens that came from the prefix cache instead.
        tokens_saved: tokens that the answered requests, as separate prompts, would have computed
            beyond those that were.
        busy_s: seconds for which forwards kept the device busy.
        tokens_per_s: the rate of recent forwards; 0 before the first one.
        requests: by how they ended.
    """

    forwards: int = 0
    retried_forwards: int = 0
    rows: int = 0
    tokens_computed: int = 0
    tokens_cached: int = 0
    tokens_saved: int = 0
    busy_s: float = 0.0
    tokens_per_s: float = 0.0
    requests: dict[str, int] = field(default_factory=dict)
    _recent_tokens: float = 0.0
    _recent_s: float = 0.0

    def record_forward(self, tokens: int, rows: int, cached: int) -> None:
        self.forwards += 1
        self.tokens_computed += tokens
        self.tokens_cached += cached
        self.rows += rows

    def record_pace(self, tokens: int, seconds: float) -> None:
        """Count a forward of `tokens` tokens that kept the device busy for `seconds`."""
        self.busy_s += seconds
        kept = 0.5 ** (seconds / _RATE_MEMORY_S)
        self._recent_tokens = self._recent_tokens * kept + tokens
        self._recent_s = self._recent_s * kept + seconds
        if self._recent_s > 0:
            self.tokens_per_s = self._recent_tokens / self._recent_s

    def record_end(self, status: Status, tokens_saved: int) -> None:
        """Count a request; `tokens_saved` is ignored unless it was answered."""
        self.requests[str(status)] = self.requests.get(str(status), 0) + 1
        if status is Status.OK:
            self.tokens_saved += tokens_saved

    def as_dict(self) -> dict[str, object]:
        """Return what is counted, ready for JSON."""
        totals = asdict(self)
        for name in ("busy_s", "tokens_per_s", "_recent_tokens", "_recent_s"):
            del totals[name]
        return totals


class ExecutionClass(StrEnum):
    """What one iteration of the scheduler served."""

    ONE_SHOT = "one_shot"  # packed forwards: nothing of a request is left afterwards
    DECODE = "decode"  # stock batches: requests live on, in the paged KV cache
    MIXED = "mixed"  # both, one after the other


@dataclass(slots=True)
class Account:
    """Iterations of one class, and the tokens that they computed."""

    iterations: int = 0
    packed_tokens: int = 0
    stock_tokens: int = 0


@dataclass(slots=True)
class Accounts:
    """One account per execution class."""

    of: dict[ExecutionClass, Account] = field(
        default_factory=lambda: {each: Account() for each in ExecutionClass}
    )

    def record(self, packed_tokens: int, stock_tokens: int) -> None:
        """Count an iteration; one that computed nothing belongs to no class."""
        if not packed_tokens and not stock_tokens:
            return
        one_sided = ExecutionClass.ONE_SHOT if packed_tokens else ExecutionClass.DECODE
        mixed = packed_tokens and stock_tokens
        account = self.of[ExecutionClass.MIXED if mixed else one_sided]
        account.iterations += 1
        account.packed_tokens += packed_tokens
        account.stock_tokens += stock_tokens
