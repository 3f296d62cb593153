"""Divide a piece: rows that came before become groups of their own, with longer prefixes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.layout.tokens import starts_of
from sglang_prefill_ext.scheduling.planner import JobShare, Share
from sglang_prefill_ext.scheduling.split import Piece, PrefixKey, RowStarts, row_piece
from sglang_prefill_ext.wire.arrays import bounds_of, places_of_ranges
from sglang_prefill_ext.wire.packed import PackedRows


class RowGroups:
    """The rows of one piece that came before, each with its own prefix, and the piece of the rest.

    The prefix of such a row is the beginning of its prompt, with the prefix of the piece. The row
    is computed in a group of its own if it joins; rows with an equal prefix join together.

    Args:
        rows: of the whole job, without embeddings of their own and without reads in the prefix.
        piece: the one with the rows from `first_row` on.
        seen: see `PrefixCache.rows_seen`, of all rows.
        most: rows of the piece that may have groups; only the first of those that came before.

    Attributes:
        pieces: by prefix, and by the row's number within the piece, those of the rows that join. At
            first these are all that may.
    """

    def __init__(
        self, rows: PackedRows, piece: Piece, first_row: int, seen: NDArray[np.int64], most: int
    ) -> None:
        self._piece, self._shared = piece, rows.prefix_len
        self.pieces: dict[PrefixKey, dict[int, Piece]] = {}
        starts = RowStarts.of(rows)
        last_row = first_row + piece.span.num_rows
        came_before = first_row + np.flatnonzero(seen[first_row:last_row])
        for number in came_before[:most].tolist():
            own = row_piece(rows, starts, number, int(seen[number]))
            assert own.prefix_key is not None, "its prefix is made of tokens, and not read"
            self.pieces.setdefault(own.prefix_key, {})[number - first_row] = own

    def any_of(self, key: PrefixKey) -> Piece:
        """One of the pieces with a prefix."""
        return next(iter(self.pieces[key].values()))

    def join(self, cached: Mapping[PrefixKey, int], spare: int, most_held: int) -> None:
        """Decide which rows join: those that save most, as long as not too many tokens are added.

        A row whose prefix has been evicted is computed once more to be cached again. Where the
        cache has less of it than of the piece's prefix, that costs tokens, which others must save.

        Args:
            cached: tokens of each prefix in `pieces` that are not computed for these pieces; a
                prefix that is left out does not join.
            spare: tokens that may be added in all, of those that `piece` counts but the cache has.
            most_held: tokens that the groups may hold in all.
        """
        shared = self._shared
        joining: dict[PrefixKey, dict[int, Piece]] = {}
        for key in sorted(cached, key=cached.__getitem__, reverse=True):
            others = len(self.pieces[key]) - 1
            added = shared - cached[key] - others * (self.any_of(key).span.fresh - shared)
            if added <= spare and cached[key] <= most_held:
                spare -= added
                most_held -= cached[key]
                joining[key] = self.pieces[key]
        self.pieces = joining

    def rest(self, cached: int, tail: int) -> Piece | None:
        """The piece without the rows that join; None if nothing is left that anyone needs.

        Args:
            cached: tokens of its prefix that are not computed.
            tail: tokens at the end of its prefix that only rows of the piece need.
        """
        piece, span, left = self._piece, self._piece.span, self._left
        if not left.any() and span.fresh <= cached + tail:
            return None
        part = replace(
            span,
            suffix_lens=span.suffix_lens[left],
            read_lens=None if span.read_lens is None else span.read_lens[left],
        )
        return replace(
            piece,
            span=part,
            suffix_ids=piece.suffix_ids[np.repeat(left, span.suffix_lens)],
            reads=piece.reads[np.repeat(left, span.row_reads())],
        )

    def share(self, shares: Sequence[Share]) -> JobShare:
        """What the forward has of the whole piece.

        Args:
            shares: of `rest`, unless that is None, then of the pieces in `pieces`, in order.
        """
        lens, joined = self._num_values, self._joined
        starts = np.zeros(len(lens), dtype=np.int64)
        first, *_ = firsts = [share.values.start for share in shares]
        starts[joined] = firsts[len(firsts) - len(joined) :]
        if len(firsts) > len(joined):
            starts[self._left] = first + starts_of(lens[self._left])
        tokens = sum(share.num_tokens for share in shares)
        return JobShare(places_of_ranges(starts, lens), tokens)

    @property
    def _num_values(self) -> NDArray[np.int64]:
        """int64 ``[rows]``: numbers of values of each row of the piece."""
        values, reads = self._piece.reads.value_lens, self._piece.span.row_reads()
        return np.diff(bounds_of(values)[bounds_of(reads)])

    @property
    def _left(self) -> NDArray[np.bool_]:
        """bool ``[rows]``: the rows of the piece that do not join."""
        left = np.ones(self._piece.span.num_rows, dtype=bool)
        left[self._joined] = False
        return left

    @property
    def _joined(self) -> list[int]:
        """Numbers, within the piece, of the rows that join, in the order of `pieces`."""
        return [*chain.from_iterable(self.pieces.values())]
