"""Counters of one scheduler's packed path."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from sglang_prefill_ext.wire.packed import PackedRows


@dataclass(slots=True)
class RuntimeStats:
    """Totals since the start.

    Attributes:
        forwards: packed forwards launched.
        rows: rows whose read-out was computed.
        tokens_computed: tokens that went through the model.
        tokens_saved: tokens that separate prompts would have added, of answered requests.
        requests: requests by how they ended.
    """

    forwards: int = 0
    rows: int = 0
    tokens_computed: int = 0
    tokens_saved: int = 0
    requests: dict[str, int] = field(default_factory=dict)

    def record_forward(self, tokens: int, rows: int) -> None:
        self.forwards += 1
        self.tokens_computed += tokens
        self.rows += rows

    def record_end(self, status: str, rows: PackedRows) -> None:
        self.requests[str(status)] = self.requests.get(str(status), 0) + 1
        if status == "ok":
            self.tokens_saved += rows.num_prompt_tokens - len(rows.tokens)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)
