"""What recurrent layers compute at once: sequences, and the chunks that kernels cut them into. Pure
numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.layout.tokens import bounds_of

CHUNK = 64
"""Tokens of a prompt that are computed at a time, as in SGLang's kernels."""

_ALIGNED = 4
"""Triton compiles another form of a kernel for an array that does not begin at a multiple of 16
bytes, here of four numbers."""

Ints = NDArray[np.int64]

Counts = TypeVar("Counts", int, Ints)


def chunks_of(tokens: Counts) -> Counts:
    """Chunks of a sequence of so many tokens, or of each of several."""
    return -(-tokens // CHUNK)


class Sequences(NamedTuple):
    """Sequences, each a stretch of a prompt.

    Attributes:
        lens: int64 ``[n]``, tokens of each; 0 for one that only fills an array.
        slots: int32 ``[n]``, the state from which each starts; 0 for one without tokens.
    """

    lens: Ints
    slots: NDArray[np.int32]

    @property
    def num_chunks(self) -> int:
        return int(chunks_of(self.lens).sum())

    def filled(self, count: int) -> Sequences:
        """So many sequences, the last of which have no tokens."""
        missing = count - len(self.lens)
        assert missing >= 0, "choose a larger graph"
        return Sequences(np.pad(self.lens, (0, missing)), np.pad(self.slots, (0, missing)))


class Room(NamedTuple):
    """For how much the arrays of a part have room.

    Attributes:
        prefixes: a multiple of 4, since the arrays are cut behind them.
        rows: sequences that are no prefixes.
        chunks: of all sequences.
    """

    prefixes: int
    rows: int
    chunks: int

    @staticmethod
    def within(tokens: int, prefixes: int, rows: int) -> Room:
        """Room for any so many prefixes and rows, of so many tokens in all."""
        prefixes = _aligned(prefixes)
        # Each has at most one chunk that is not full, and that has at least one token.
        return Room(prefixes, rows, (tokens + (CHUNK - 1) * (prefixes + rows)) // CHUNK)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Sequences that a layer computes at once: prefixes, then those that start from any state.

    Attributes:
        tokens: where they lie, one behind the other, in the order of the plan.
        sequences: all of them.
        num_prefixes: how many of them, the first ones, are prefixes, whose states are kept.
        num_chunks: length of `chunks`.
        grid: see `Recurrence`.
    """

    tokens: slice
    sequences: Sequences
    num_prefixes: int
    num_chunks: int
    grid: int = 0

    @staticmethod
    def joined(first: int, prefixes: Sequences, rows: Sequences, room: Room | None) -> Part:
        """A part whose tokens begin at `first`.

        Args:
            room: None: as little as these sequences need.
        """
        tokens = slice(first, first + int(prefixes.lens.sum() + rows.lens.sum()))
        if room is None:
            chunks = prefixes.num_chunks + rows.num_chunks
            room = Room(_aligned(len(prefixes.lens)), len(rows.lens), chunks)
        prefixes, rows = prefixes.filled(room.prefixes), rows.filled(room.rows)
        lens = np.concatenate([prefixes.lens, rows.lens])
        slots = np.concatenate([prefixes.slots, rows.slots])
        return Part(tokens, Sequences(lens, slots), room.prefixes, room.chunks)

    @property
    def stages(self) -> list[tuple[slice, bool]]:
        """Sequences that do not start behind each other, and whether their states are kept."""
        count = len(self.sequences.lens)
        cuts = (0, self.num_prefixes, True), (self.num_prefixes, count, False)
        return [(slice(start, stop), keep) for start, stop, keep in cuts if start < stop]

    def host_arrays(self) -> list[NDArray[np.int32]]:
        """What kernels read: bounds and slots; then `chunks` and `chunk_bounds` or, with a grid,
        `sequences` and the two arrays of `pieces`."""
        if self.grid:
            return [self.bounds, self.sequences.slots, self.owners(), *self.pieces()]
        return [self.bounds, self.sequences.slots, self.chunks(), self.chunk_bounds]

    @property
    def bounds(self) -> NDArray[np.int32]:
        """int32 ``[n + 1]``: where each begins, then the number of tokens."""
        return bounds_of(self.sequences.lens).astype(np.int32)

    @property
    def chunk_bounds(self) -> NDArray[np.int32]:
        """int32 ``[n + 1]``: the first chunk of each, then the number of chunks."""
        return bounds_of(chunks_of(self.sequences.lens)).astype(np.int32)

    def chunks(self) -> NDArray[np.int32]:
        """int32 ``[num_chunks, 2]``: sequence of each chunk, and its number within that.

        Spare ones lie behind the end of the last sequence, where kernels compute nothing.
        """
        counts, first = chunks_of(self.sequences.lens), self.chunk_bounds
        counts[-1] += self.num_chunks - first[-1]
        owners = np.repeat(np.arange(len(counts)), counts)
        return np.stack([owners, np.arange(len(owners)) - first[owners]], 1).astype(np.int32)

    def owners(self) -> NDArray[np.int32]:
        """int32 ``[tokens]``: the sequence of each token."""
        lens = self.sequences.lens
        return np.repeat(np.arange(len(lens), dtype=np.int32), lens)

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
        num_states: for how many slots there is room, 0 included.
    """

    slots: dict[int, int]
    parts: tuple[Part, ...]
    num_states: int


def _aligned(count: int) -> int:
    return -(-count // _ALIGNED) * _ALIGNED
