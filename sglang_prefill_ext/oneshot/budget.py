"""How large one forward may be: in tokens, and in the memory that it takes while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_prefill_ext.errors import ConfigError

UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True)
class ForwardBudget:
    """Most tokens of one forward, and most bytes of its temporary memory.

    Memory is modelled as ``bytes_per_token * tokens + bytes_per_row * rows``, whole numbers that
    are the same on every tensor-parallel rank. The owner of the device calibrates them.

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

    @property
    def longest_chunk(self) -> int:
        """Most tokens of a forward that reads no row."""
        if not self.bytes_per_token:
            return self.max_tokens
        return min(self.max_tokens, self.max_bytes // self.bytes_per_token)

    @property
    def longest_row(self) -> int:
        """Most tokens of a row whose prefix is held: one longer has no forward to run in."""
        if not self.bytes_per_token:
            return self.max_tokens
        left = self.max_bytes - self.bytes_per_row
        return min(self.max_tokens, left // self.bytes_per_token)
