"""The heads of a layer, and which tokens they see. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Heads of a layer on this rank.

    `chunk`: see `LayerInputs`.
    """

    num_heads: int
    num_key_heads: int
    head_dim: int
    value_dim: int
    chunk: int = 0

    @property
    def group_size(self) -> int:
        """Query heads that share a key head."""
        return self.num_heads // self.num_key_heads

    @property
    def largest_dim(self) -> int:
        """The larger of the two head sizes, which a tile of keys or values must hold."""
        return max(self.head_dim, self.value_dim)
