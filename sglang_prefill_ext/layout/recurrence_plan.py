"""How recurrent layers pass through a forward: prefixes first, then rows from where these end.

Pure numpy. A recurrent layer has a convolution over the last few tokens of a prompt, and mostly a
state that it carries from token to token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.layout.recurrence_parts import Ints, Part, Pass, Room, Sequences, chunks_of
from sglang_prefill_ext.layout.tokens import ForwardLayout

MOST_CHUNKS = 512
"""Of one part. SGLang's kernels keep a state of each chunk for a while, and have a program for each
head of each sequence, of which CUDA allows 65,535."""

MOST_STATES = 64
"""Prefixes of one pass, each of which has a state; sequences of a part, if each has a copy."""


@dataclass(frozen=True, slots=True)
class Recurrence:
    """What the recurrent layers of a model have in common.

    Attributes:
        width: how many tokens of a prompt the convolution sees at a time, the last one included.
        carries: whether there is a state beside the convolution.
        grid: tokens of a chunk if kernels cut a whole part into chunks, of which one may have
            tokens of several sequences. They take a copy of the state for each sequence, unless all
            start from the same. 0: each sequence has chunks of its own, of `CHUNK` tokens.
    """

    width: int
    carries: bool = True
    grid: int = 0

    @property
    def is_replayable(self) -> bool:
        """Whether graphs can replay it. Chunks on a grid begin where sequences of a forward do."""
        return not self.grid


def carries_states(recurrence: Recurrence | None) -> bool:
    """Whether a model has recurrent layers with a state."""
    return recurrence is not None and recurrence.carries


@dataclass(frozen=True, eq=False)  # no slots: `cached_property` needs a `__dict__`
class RecurrencePlan:
    """What all recurrent layers of one forward read.

    Args:
        stored: the group whose prefix is to be held from now on; None for none.
        room: for a graph: one pass of one part, and an order in any case; all arrays are as large
            for every layout of as many tokens. None: as large as this layout needs.
    """

    layout: ForwardLayout
    recurrence: Recurrence
    stored: int | None = None
    room: Room | None = None

    @cached_property
    def passes(self) -> tuple[Pass, ...]:
        if not self.recurrence.carries:
            return ()
        passes, first = list[Pass](), 0
        for start, stop in pairwise(self._cuts):
            passes.append(self._pass(range(start, stop), first))
            first = passes[-1].parts[-1].tokens.stop
        return tuple(passes)

    def order(self) -> NDArray[np.int32] | None:
        """int32 ``[T]``: the tokens in the order in which passes have them; None if they lie so."""
        if not self.recurrence.carries:
            return None
        pass_of = np.repeat(np.arange(len(self._cuts) - 1), np.diff(self._cuts))
        of_row = self._is_row | ~self._is_divided[self._groups]
        order = np.argsort(2 * pass_of[self._groups] + of_row, kind="stable").astype(np.int32)
        lie_so = self.room is None and (order[1:] > order[:-1]).all()
        return None if lie_so else order

    def previous(self) -> NDArray[np.int32]:
        """int32 ``[T, width - 1]``: the tokens before each token in its prompt, the nearest last.

        Tokens of a held prefix are numbered from ``T`` on: ``T + width - 2`` is its last one.
        ``T + width - 1`` stands for no token.
        """
        offsets = np.arange(self.layout.num_tokens) - self.layout.segment_starts()
        back = np.arange(self.recurrence.width - 1, 0, -1)
        inside = np.arange(self.layout.num_tokens)[:, None] - back
        before_segment = back - offsets[:, None]
        tokens, places = np.nonzero(before_segment > 0)
        inside[tokens, places] = self._before(
            self._groups[tokens], self._is_row[tokens], before_segment[tokens, places]
        )
        return inside.astype(np.int32)

    def tail(self, group: int) -> NDArray[np.int32]:
        """int32 ``[width - 1]``: the last tokens of a group's prefix, numbered as in `previous`."""
        back = np.arange(self.recurrence.width - 1, 0, -1)
        groups = np.full(len(back), group)
        return self._before(groups, np.ones(len(back), dtype=bool), back).astype(np.int32)

    def _pass(self, groups: range, first: int) -> Pass:
        """The pass of some groups, whose tokens begin at `first` in the order."""
        divided = [group for group in groups if self._is_divided[group]]
        slots = {group: 1 + number for number, group in enumerate(divided)}
        fresh = [group for group in divided if self.layout.fresh[group]]
        prefixes = _sequences(self.layout.fresh[fresh], [slots[group] for group in fresh])
        lens, of_rows = list[int](), list[int]()
        for group in groups:
            span = self.layout.groups[group]
            is_one = group not in slots and span.fresh > 0
            own = [span.num_tokens] if is_one else span.suffix_lens.tolist()
            lens += own
            of_rows += [slots.get(group, 0)] * len(own)
        parts = self._parts(prefixes, _sequences(lens, of_rows), first)
        states = len(slots) if self.room is None else self.room.prefixes
        return Pass(slots, tuple(parts), 1 + states)

    def _parts(self, prefixes: Sequences, rows: Sequences, first: int) -> Iterator[Part]:
        """One part if possible, as its sequences share most launches; else prefixes, then rows."""
        few = prefixes.num_chunks + rows.num_chunks <= MOST_CHUNKS
        if self.room is not None or (few and not self.recurrence.grid):
            yield Part.joined(first, prefixes, rows, self.room)
            return
        yield from self._divided(prefixes, first, are_prefixes=True)
        yield from self._divided(rows, first + int(prefixes.lens.sum()), are_prefixes=False)

    def _divided(self, all_of: Sequences, first: int, *, are_prefixes: bool) -> Iterator[Part]:
        """Divide sequences into parts of at most `MOST_CHUNKS` chunks, or of one sequence."""
        lens, slots = all_of
        chunks, start = chunks_of(lens).cumsum(), 0
        while start < len(lens):
            before = chunks[start - 1] if start else 0
            stop = max(start + 1, int(chunks.searchsorted(before + MOST_CHUNKS, side="right")))
            if self.recurrence.grid and len({*slots[start:stop].tolist()}) > 1:
                stop = min(stop, start + MOST_STATES)
            own = Sequences(lens[start:stop], slots[start:stop])
            tokens = slice(first, first + int(own.lens.sum()))
            prefixes = len(own.lens) if are_prefixes else 0
            yield Part(tokens, own, prefixes, own.num_chunks, self.recurrence.grid)
            start, first = stop, tokens.stop

    def _before(self, groups: Ints, of_row: NDArray[np.bool_], back: Ints) -> Ints:
        """The token that lies `back` >= 1 tokens before the start of a row, or of a prefix."""
        fresh = np.where(of_row, self.layout.fresh[groups], 0)
        in_held = back - fresh  # counted from the end of the held prefix, from 1
        nothing = self.layout.num_tokens + self.recurrence.width - 1
        outside = nothing - np.where(in_held <= self.layout.held[groups], in_held, 0)
        inside = self.layout.group_starts[groups] + fresh - back
        before: Ints = np.where(back <= fresh, inside, outside)
        return before

    @cached_property
    def _is_divided(self) -> NDArray[np.bool_]:
        """bool ``[groups]``: whether a group's prefix has a state, from which several rows start.

        Other groups are one sequence, or rows without a prefix.
        """
        return np.array(
            [
                group.held > 0 or number == self.stored or (group.fresh > 0 and group.num_rows > 1)
                for number, group in enumerate(self.layout.groups)
            ]
        )

    @cached_property
    def _cuts(self) -> list[int]:
        """The first group of each pass, then the number of groups."""
        starts = np.flatnonzero(self._is_divided)[MOST_STATES::MOST_STATES]
        return [0, *starts.tolist(), len(self.layout.groups)]

    @cached_property
    def _groups(self) -> Ints:
        """int64 ``[T]``: the group of each token."""
        tokens = [group.num_tokens for group in self.layout.groups]
        return np.repeat(np.arange(len(tokens)), tokens)

    @cached_property
    def _is_row(self) -> NDArray[np.bool_]:
        """bool ``[T]``: whether each token is one of a row, and not of a prefix."""
        offsets = np.arange(self.layout.num_tokens) - self.layout.group_starts[self._groups]
        return offsets >= self.layout.fresh[self._groups]


def _sequences(lens: Sequence[int] | Ints, slots: Sequence[int]) -> Sequences:
    return Sequences(np.array(lens, dtype=np.int64), np.array(slots, dtype=np.int32))
