"""The steps of a decoder's layers in which tokens read those before them, and their costs. Pure."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from sglang_prefill_ext.sizing.shape import Shape
from sglang_prefill_ext.sizing.sublayers import Sublayer


@dataclass(frozen=True, slots=True)
class Mixer(Sublayer):
    """A step in which a token reads those before it."""

    @property
    @abstractmethod
    def head_counts(self) -> tuple[int, int]:
        """Numbers of heads, of queries and of keys, that are divided over ranks."""

    def last_operations(self, shape: Shape) -> int:
        """Operations if nothing but the steps behind it reads the result, at the read positions."""
        return self.operations(shape)


@dataclass(frozen=True, slots=True)
class Attention(Mixer):
    """Attention whose queries share keys and values in groups.

    Queries have ``hidden * heads * head_dim`` weights, and keys ``hidden * kv_heads * head_dim``.
    Values and output have as many, with `value_dim`.

    Attributes:
        head_dim: size of a head's queries and keys.
        window: tokens that a token attends to, itself included; None for all before it. Chunks, as
            of Llama 4, count as windows: of prompts in one chunk this is exact.
        kv_maps: maps that make keys and values: 2; 1 if values are made of the keys; 0 if the layer
            has those of an earlier one.
        gate: outputs of a map that weighs the attention's; 0 if there is none.
        values: size of a head's values; 0: `head_dim`.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    kv_maps: int = 2
    gate: int = 0
    values: int = 0

    @property
    def value_dim(self) -> int:
        """Size of a head's values."""
        return self.values or self.head_dim

    @property
    def weights(self) -> int:
        out = self.heads * self.value_dim * self.hidden
        return self.query_weights + self.kv_weights + self.hidden * self.gate + out

    @property
    def query_weights(self) -> int:
        return self.hidden * self.heads * self.head_dim

    @property
    def kv_weights(self) -> int:
        """Weights that make keys and values."""
        made = (0, self.head_dim, self.head_dim + self.value_dim)[self.kv_maps]
        return self.hidden * self.kv_heads * made

    @property
    def head_counts(self) -> tuple[int, int]:
        return self.heads, self.kv_heads

    @property
    def pair_operations(self) -> int:
        """Operations for one pair of query and key: a dot product and a weighted sum a head."""
        return 2 * self.heads * (self.head_dim + self.value_dim)

    @property
    def kv_numbers(self) -> int:
        """Keys and values of a token, written and read once; of an earlier layer, only read."""
        times = 2 if self.kv_maps else 1
        return times * self.kv_heads * (self.head_dim + self.value_dim)

    def operations(self, shape: Shape) -> int:
        pairs = shape.pairs_within(self.window)
        return 2 * self.weights * shape.packed_tokens + pairs * self.pair_operations

    def last_operations(self, shape: Shape) -> int:
        """Keys and values of all tokens, and all else at the rows' last tokens only."""
        others = 2 * (self.weights - self.kv_weights)
        keys = min(shape.row_tokens, self.window or shape.row_tokens)
        rows = shape.items * (others + keys * self.pair_operations)
        return 2 * self.kv_weights * shape.packed_tokens + rows


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention(Attention):
    """Attention whose keys and values of all heads are made of a few numbers of a token.

    Attributes:
        head_dim: size of a head's queries and keys, with what has a position.
        rank: of the numbers of which keys and values are made.
        rotated: numbers of a key with positions, which all heads share.
        query_rank: of those of which queries are made; 0 if there are none.
    """

    rank: int
    rotated: int
    query_rank: int

    @property
    def query_weights(self) -> int:
        queries = self.heads * self.head_dim
        made_of = self.query_rank
        return made_of * (self.hidden + queries) if made_of else self.hidden * queries

    @property
    def kv_weights(self) -> int:
        made = self.heads * (self.head_dim - self.rotated + self.value_dim)
        return self.hidden * (self.rank + self.rotated) + self.rank * made
