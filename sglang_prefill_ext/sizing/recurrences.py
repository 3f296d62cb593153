"""The steps of a decoder's layers that carry something along a prompt, and their costs. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_prefill_ext.layout.recurrence_parts import chunks_of
from sglang_prefill_ext.sizing.mixers import Mixer
from sglang_prefill_ext.sizing.shape import Shape

_STATE_BYTES = 4
"""Of a number of a state that is carried from one sequence to another; these are float32."""


@dataclass(frozen=True, slots=True)
class Recurrence(Mixer):
    """A step that carries something along the prompt; of a token, it computes all or nothing."""

    @property
    def rule_operations(self) -> int:
        """Operations for one token beside those with weights."""
        return 0

    def operations(self, shape: Shape) -> int:
        return (2 * self.weights + self.rule_operations) * shape.packed_tokens

    def state_bytes(self, shape: Shape, requests: int, number_bytes: int) -> int:
        """Least traffic of its states, if so many requests of a shape share a forward."""
        return 0


@dataclass(frozen=True, slots=True)
class DeltaRule(Recurrence):
    """A gated delta rule, as in Qwen3-Next: Yang, Kautz, Hatamizadeh, arXiv 2412.06464.

    Queries, keys, values, a gate of the values' size and two numbers for each value head are made
    of a token; a convolution reads the first three.

    Attributes:
        key_heads, key_dim: of queries and of keys.
        value_heads, value_dim: of values.
        conv_width: tokens that the convolution sees.
    """

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    conv_width: int

    @property
    def weights(self) -> int:
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        made = 2 * (keys + values + self.value_heads)
        return self.hidden * (made + values) + self.conv_width * (2 * keys + values)

    @property
    def head_counts(self) -> tuple[int, int]:
        return self.value_heads, self.key_heads

    @property
    def rule_operations(self) -> int:
        """Three products with each head's state: what it knows, what is written, what is read."""
        return 3 * 2 * self._state

    def state_bytes(self, shape: Shape, requests: int, number_bytes: int) -> int:
        """A row begins with a float32 state.

        Each chunk of a sequence's tokens writes a state, and reads it again.
        """
        chunks = chunks_of(shape.prefix_tokens) + shape.items * chunks_of(shape.suffix_tokens)
        state = _STATE_BYTES * shape.items + 2 * number_bytes * chunks
        return requests * self._state * state

    @property
    def _state(self) -> int:
        """Numbers of a state."""
        return self.value_heads * self.value_dim * self.key_dim


@dataclass(frozen=True, slots=True)
class StateSpace(Recurrence):
    """Mamba-2: Dao, Gu, arXiv 2405.21060.

    Inputs and a gate of ``heads * head_dim`` channels, two vectors of the state's size for each
    group of heads and a step for each head are made of a token. A convolution reads the inputs and
    the vectors.

    Attributes:
        groups: of heads, which share what is written and read.
        state_size: numbers of the state for each channel.
        conv_width: tokens that the convolution sees.
        chunk: tokens that are computed at a time.
    """

    heads: int
    head_dim: int
    groups: int
    state_size: int
    conv_width: int
    chunk: int

    @property
    def weights(self) -> int:
        channels, read = self.heads * self.head_dim, 2 * self.groups * self.state_size
        made = 2 * channels + read + self.heads
        return self.hidden * (made + channels) + self.conv_width * (channels + read)

    @property
    def head_counts(self) -> tuple[int, int]:
        return self.heads, self.groups

    @property
    def rule_operations(self) -> int:
        """Two products with each head's state: what is written, and what is read."""
        return 2 * 2 * self._state

    def state_bytes(self, shape: Shape, requests: int, number_bytes: int) -> int:
        """A row begins with a state. Each chunk writes one, and reads it again.

        All are float32. One chunk may have tokens of several sequences: those of all prefixes are
        cut into chunks, and those of all rows.
        """
        tokens = shape.prefix_tokens, shape.items * shape.suffix_tokens
        chunks = sum(-(-requests * each // self.chunk) for each in tokens)
        return self._state * _STATE_BYTES * (requests * shape.items + 2 * chunks)

    @property
    def _state(self) -> int:
        """Numbers of a state."""
        return self.heads * self.head_dim * self.state_size


@dataclass(frozen=True, slots=True)
class ShortConvolution(Recurrence):
    """A convolution between two gates, as in LFM2, with a map back: ``4 * hidden**2`` weights.

    Attributes:
        conv_width: tokens that it sees; it carries nothing else.
    """

    conv_width: int

    @property
    def weights(self) -> int:
        return self.hidden * (4 * self.hidden + self.conv_width)

    @property
    def head_counts(self) -> tuple[int, int]:
        return self.hidden, self.hidden
