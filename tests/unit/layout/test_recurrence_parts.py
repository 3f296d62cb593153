"""Chunks and pieces of sequences, compared with going through every token."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.layout.recurrence_parts import CHUNK, Part, Room, Sequences, chunks_of

LENS = st.lists(st.integers(1, 3 * CHUNK), max_size=6)


def sequences(lens: list[int], first_slot: int = 0) -> Sequences:
    slots = np.arange(first_slot, first_slot + len(lens), dtype=np.int32)
    return Sequences(np.array(lens, dtype=np.int64), slots)


@given(LENS.filter(len))
def test_chunks_of_sequences(lens: list[int]) -> None:
    own = sequences(lens)
    part = Part(slice(0, sum(lens)), own, 0, own.num_chunks)
    wanted = [
        (sequence, chunk)
        for sequence, length in enumerate(lens)
        for chunk in range(-(-length // CHUNK))
    ]
    assert [*map(tuple, part.chunks().tolist())] == wanted
    firsts = [wanted.index((sequence, 0)) for sequence in range(len(lens))]
    assert part.chunk_bounds.tolist() == [*firsts, len(wanted)]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 8))
def test_pieces_begin_with_chunks_and_with_sequences(lens: list[int], grid: int) -> None:
    part = Part(slice(7, 7 + sum(lens)), sequences(lens), 0, 0, grid)
    owners = [sequence for sequence, length in enumerate(lens) for _ in range(length)]
    starts = [
        token
        for token, owner in enumerate(owners)
        if token % grid == 0 or owners[token - 1] != owner
    ]
    *_, found, chunks, places = part.host_arrays()
    assert found.tolist() == owners
    assert [*zip(chunks.tolist(), places.tolist(), strict=True)] == [
        divmod(token, grid) for token in starts
    ]
    assert {each.dtype for each in (found, chunks, places)} == {np.dtype(np.int32)}


@given(LENS, LENS.filter(len), st.none() | st.tuples(*[st.integers(0, 5)] * 3), st.integers(0, 9))
def test_prefixes_and_rows_of_a_part(
    prefixes: list[int], rows: list[int], spare: tuple[int, int, int] | None, first: int
) -> None:
    """With spare room or without, every stage has its own sequences, and others without tokens."""
    tokens, room = sum(prefixes) + sum(rows), None
    if spare is not None:
        more_tokens, more_prefixes, more_rows = spare
        counts = len(prefixes) + more_prefixes, len(rows) + more_rows
        room = Room.within(tokens + more_tokens, *counts)
    part = Part.joined(first, sequences(prefixes, 1), sequences(rows), room)
    assert part.tokens == slice(first, first + tokens)
    bounds, chunk_bounds = part.bounds.tolist(), part.chunk_bounds.tolist()
    wanted = [(True, prefixes, 1)] * bool(part.num_prefixes) + [(False, rows, 0)]
    assert [keep for _, keep in part.stages] == [keep for keep, _, _ in wanted]
    for (numbers, _), (_, lens, first_slot) in zip(part.stages, wanted, strict=True):
        assert numbers.start % 4 == 0  # else kernels are compiled once more
        own = part.sequences.slots[numbers].tolist()
        missing = len(own) - len(lens)
        assert own == [*range(first_slot, first_slot + len(lens)), *[0] * missing]
        assert np.diff(bounds[numbers.start : numbers.stop + 1]).tolist() == [*lens, *[0] * missing]
    chunks = part.chunks().tolist()
    assert len(chunks) == part.num_chunks
    if spare is not None:
        assert room is not None
        assert part.num_chunks == room.chunks >= chunk_bounds[-1]
    for number, (owner, place) in enumerate(chunks):
        has_tokens = place * CHUNK < bounds[owner + 1] - bounds[owner]
        assert has_tokens == (number < chunk_bounds[-1])
        assert not has_tokens or chunk_bounds[owner] + place == number


@given(st.integers(1, 2000), st.integers(0, 9), st.integers(1, 9), st.randoms())
def test_there_is_room_for_the_chunks_of_any_sequences(
    tokens: int, prefixes: int, rows: int, random: Random
) -> None:
    room = Room.within(tokens, prefixes, rows)
    cuts = sorted(random.choices(range(tokens + 1), k=prefixes + rows - 1))
    lens = np.diff([0, *cuts, tokens])
    assert chunks_of(lens).sum() <= room.chunks
    assert Room.within(64, 30, 32) == Room(32, 32, 64)  # and for no more
