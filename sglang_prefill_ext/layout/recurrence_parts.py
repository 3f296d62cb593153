"""What recurrent layers compute at once: sequences, and the chunks that kernels cut them into. Pure
numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

CHUNK = 64
"""Tokens of a prompt that are computed at a time, as in SGLang's kernels."""

Ints = NDArray[np.int64]

Counts = TypeVar("Counts", int, Ints)


def chunks_of(tokens: Counts) -> Counts:
    """Chunks of a sequence of so many tokens, or of each of several."""
    return -(-tokens // CHUNK)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Sequences, each a stretch of a prompt, that a layer computes at once.

    Attributes:
        tokens: where they lie, one behind the other, in the order of the plan.
        lens: int64 ``[n]``, tokens of each, >= 1.
        slots: int32 ``[n]``, the state from which each starts.
        keep: these are prefixes, so their states are kept.
        grid: see `Recurrence`.
    """

    tokens: slice
    lens: Ints
    slots: NDArray[np.int32]
    keep: bool
    grid: int

    def host_arrays(self) -> list[NDArray[np.int32]]:
        """What kernels read: bounds and slots; then `chunks` and `chunk_bounds` or, with a grid,
        `sequences` and the two arrays of `pieces`."""
        if self.grid:
            return [self.bounds, self.slots, self.sequences(), *self.pieces()]
        return [self.bounds, self.slots, self.chunks(), self.chunk_bounds]

    @property
    def bounds(self) -> NDArray[np.int32]:
        """int32 ``[n + 1]``: where each begins, then the number of tokens."""
        return np.concatenate([[0], self.lens.cumsum()]).astype(np.int32)

    @property
    def chunk_bounds(self) -> NDArray[np.int32]:
        """int32 ``[n + 1]``: the first chunk of each, then the number of chunks."""
        return np.concatenate([[0], chunks_of(self.lens).cumsum()]).astype(np.int32)

    def chunks(self) -> NDArray[np.int32]:
        """int32 ``[chunks, 2]``: sequence of each chunk, and its number within that."""
        counts, first = chunks_of(self.lens), self.chunk_bounds
        sequences = np.repeat(np.arange(len(counts)), counts)
        return np.stack([sequences, np.arange(first[-1]) - first[sequences]], 1).astype(np.int32)

    def sequences(self) -> NDArray[np.int32]:
        """int32 ``[tokens]``: the sequence of each token."""
        return np.repeat(np.arange(len(self.lens), dtype=np.int32), self.lens)

    def pieces(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Where chunks and sequences begin: int32 ``[pieces]``, the chunk, and the token in it."""
        starts = np.arange(0, self.tokens.stop - self.tokens.start, self.grid)
        starts = np.union1d(starts, self.bounds[:-1])
        return (starts // self.grid).astype(np.int32), (starts % self.grid).astype(np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """Groups that are computed together, and parts of their prefixes, then of their rows.

    Attributes:
        slots: of each group that has one, its state: 1, 2, ... 0 is that of no token.
    """

    slots: dict[int, int]
    parts: tuple[Part, ...]
