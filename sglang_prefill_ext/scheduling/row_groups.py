"""Divide a piece: rows that came before become groups of their own, with longer prefixes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.layout.tokens import GroupSpan
from sglang_prefill_ext.scheduling.planner import JobShare, Share
from sglang_prefill_ext.scheduling.split import Piece, PrefixKey, piece_of
from sglang_prefill_ext.wire.arrays import (
    NO_OVERRIDES,
    bounds_of,
    int_array,
    places_of_ranges,
)
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.parts import take_rows

_NO_ENDS = np.empty(0, dtype=np.int64)


class RowGroups:
    """The rows of one piece that came before, each with its own prefix, and the piece of the rest.

    The prefix of such a row is the beginning of its prompt, with the prefix of the piece. The row
    is computed in a group of its own if it joins; rows with an equal prefix join together.

    Args:
        rows: of the whole job; a divisible request.
        piece: one that split rows from `first_row` on.
        seen: see `PrefixCache.rows_seen`, of all rows.

    Attributes:
        pieces: of the rows that join. At first those are all that came before.
    """

    def __init__(
        self, rows: PackedRows, piece: Piece, first_row: int, seen: NDArray[np.int64]
    ) -> None:
        self._rows, self._piece, self._first_row = rows, piece, first_row
        self._numbers: dict[PrefixKey, list[int]] = {}
        self.pieces: dict[PrefixKey, list[Piece]] = {}
        starts = rows.prefix_len + bounds_of(rows.suffix_lens)
        last_row = first_row + piece.span.num_rows
        for number in first_row + np.flatnonzero(seen[first_row:last_row]):
            own = _row_piece(rows, int(number), int(seen[number]), starts)
            assert own.prefix_key is not None, "rows without embeddings of their own"
            self._numbers.setdefault(own.prefix_key, []).append(int(number) - first_row)
            self.pieces.setdefault(own.prefix_key, []).append(own)

    def join(self, cached: Mapping[PrefixKey, int], spare: int, most_held: int) -> None:
        """Decide which rows join: those that save most, as long as no tokens are added in all.

        A row whose prefix has been evicted is computed once more to be cached again. Where the
        cache has less of it than of the piece's prefix, that costs tokens, which others must save.

        Args:
            cached: tokens of each prefix in `pieces` that are not computed for these pieces.
            spare: tokens that the cache has of the piece's prefix, and that `piece` counts.
            most_held: tokens that the groups may hold in all.
        """
        shared = self._rows.prefix_len
        joining: dict[PrefixKey, list[Piece]] = {}
        for key in sorted(self.pieces, key=lambda key: shared - cached[key]):
            pieces = self.pieces[key]
            added = shared - cached[key]
            added -= (len(pieces) - 1) * (pieces[0].span.fresh - shared)
            if added <= spare and cached[key] <= most_held:
                spare -= added
                most_held -= cached[key]
                joining[key] = pieces
        self.pieces = joining

    def rest(self, cached: int) -> Piece | None:
        """The piece without the rows that join; None if nothing is left to compute.

        Args:
            cached: tokens of its prefix that are not computed.
        """
        span = self._piece.span
        left = np.setdiff1d(np.arange(span.num_rows), self._joined)
        if len(left):
            rows = take_rows(self._rows, self._first_row + left)
        elif span.fresh > cached:
            rows = self._rows
        else:
            return None
        rest = piece_of(rows, span.held, span.fresh, len(left))
        return replace(rest, prefix_key=self._piece.prefix_key)

    def share(self, shares: Sequence[Share]) -> JobShare:
        """What the forward has of the whole piece.

        Args:
            shares: of `rest`, unless that is None, then of the pieces in `pieces`, in order.
        """
        lens, joined = self._piece.reads.value_lens, self._joined
        starts = np.zeros(len(lens), dtype=np.int64)
        first, *_ = firsts = [share.values.start for share in shares]
        starts[joined] = firsts[len(firsts) - len(joined) :]
        if len(firsts) > len(joined):
            left = np.setdiff1d(np.arange(len(lens)), joined)
            starts[left] = first + bounds_of(lens[left])[:-1]
        tokens = sum(share.num_tokens for share in shares)
        return JobShare(places_of_ranges(starts, lens), tokens)

    @property
    def _joined(self) -> list[int]:
        """Numbers, within the piece, of the rows that join, in the order of `pieces`."""
        return [*chain.from_iterable(self._numbers[key] for key in self.pieces)]


def _row_piece(rows: PackedRows, number: int, prefix_len: int, starts: NDArray[np.int64]) -> Piece:
    """One row as a piece of its own, with so many first tokens of its prompt as the prefix.

    Args:
        starts: where each row begins in `rows.tokens`, then where the last one ends.
    """
    own = rows.tokens[starts[number] : starts[number + 1]]
    prompt = np.concatenate([rows.tokens[: rows.prefix_len], own])
    prefix_ids = prompt[:prefix_len]
    return Piece(
        span=GroupSpan(0, prefix_len, int_array([len(prompt) - prefix_len])),
        prefix_ids=prefix_ids,
        suffix_ids=prompt[prefix_len:],
        overrides=NO_OVERRIDES,
        adapter=rows.adapter,
        reads=rows.read.part(number, number + 1, slice(0), _NO_ENDS),
        prefix_key=(rows.adapter, prefix_ids.tobytes()),
    )
