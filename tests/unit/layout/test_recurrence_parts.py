"""Chunks and pieces of sequences, compared with going through every token."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.layout.recurrence_parts import CHUNK, Part


@given(st.lists(st.integers(1, 3 * CHUNK), min_size=1, max_size=6))
def test_chunks_of_sequences(lens: list[int]) -> None:
    part = Part(slice(0, sum(lens)), np.array(lens), np.zeros(len(lens), np.int32), False, 0)
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
    part = Part(slice(7, 7 + sum(lens)), np.array(lens), np.zeros(len(lens), np.int32), False, grid)
    owners = [sequence for sequence, length in enumerate(lens) for _ in range(length)]
    starts = [
        token
        for token, owner in enumerate(owners)
        if token % grid == 0 or owners[token - 1] != owner
    ]
    *_, sequences, chunks, places = part.host_arrays()
    assert sequences.tolist() == owners
    assert [*zip(chunks.tolist(), places.tolist(), strict=True)] == [
        divmod(token, grid) for token in starts
    ]
    assert {each.dtype for each in (sequences, chunks, places)} == {np.dtype(np.int32)}
