"""Plan one forward: join pieces of several requests to a layout, ids and reads; pure data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.layout.tokens import ForwardLayout, GroupSpan
from sglang_prefill_ext.scheduling.split import Piece
from sglang_prefill_ext.wire.arrays import (
    NO_OVERRIDES,
    Float32Array,
    Int32Array,
    OverrideArray,
    bounds_of,
)
from sglang_prefill_ext.wire.reads import Reads


@dataclass(frozen=True, slots=True)
class Share:
    """One piece's part of a forward.

    Attributes:
        group: number of the piece's group in the layout.
        values: its slice of the forward's values.
        num_tokens: tokens computed for it; a shared prefix counts for the first piece of a group.
    """

    group: int
    values: slice
    num_tokens: int


class JobShare(NamedTuple):
    """One job's part of a forward.

    Attributes:
        values: where its values are among the forward's, in the order of its rows.
        num_tokens: see `Share`.
    """

    values: slice | NDArray[np.int64]
    num_tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class ForwardPlan:
    """What one forward computes and reads.

    Attributes:
        token_ids: int32 ``[layout.num_tokens]``; 0 where an override stands.
        override_at: tokens with an embedding of their own; int64, ascending.
        overrides: these embeddings, ``[len(override_at), hidden]``.
        adapters: that of each group; empty for none. Groups of one adapter are neighbours.
        reads: those of all pieces, in the order of the layout.
        shares: one entry per piece, in the order in which the pieces were given.
        held: per group the slots, int64 ``[held]``, of its held prefix; None where nothing is held.
        stores: per group the slots, int64, where K/V of its first fresh tokens are to be stored;
            None where none are. `PrefixedForward` enters the slots of both.
    """

    layout: ForwardLayout
    token_ids: Int32Array
    override_at: NDArray[np.int64]
    overrides: OverrideArray
    adapters: tuple[str, ...]
    reads: Reads
    shares: tuple[Share, ...]
    held: list[Any]
    stores: list[Any]

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_rows(self) -> int:
        return self.layout.num_rows


class Completion(Protocol):
    """A launched forward. On a GPU it runs on after `Executor.launch` has returned."""

    def done(self) -> bool:
        """Whether `wait` would not block."""

    def wait(self) -> Float32Array:
        """Block until the forward is done; return the values of its reads, float32, in order."""


class Executor(Protocol):
    """Launches forwards in the order of the calls."""

    @property
    def asynchronous(self) -> bool:
        """Whether `launch` returns before the forward is done; the same on every rank."""

    @property
    def causal(self) -> bool:
        """Whether prompts can share a prefix, because no token sees the tokens after it."""

    def launch(self, plan: ForwardPlan) -> Completion:
        """Launch a forward."""


def plan_forward(pieces: Sequence[Piece]) -> ForwardPlan:
    """Lay out pieces, at least one; those with the same prefix and adapter become one group.

    Takes about 40 us for 8 pieces of 50 rows: nothing here runs row by row.
    """
    by_prefix: dict[object, list[int]] = {}
    for number, piece in enumerate(pieces):
        key = number if piece.prefix_key is None else piece.prefix_key
        by_prefix.setdefault(key, []).append(number)
    groups = sorted(by_prefix.values(), key=lambda members: pieces[members[0]].adapter)
    placed = [number for members in groups for number in members]
    segments: list[tuple[Int32Array, OverrideArray]] = []
    for members in groups:
        first = pieces[members[0]]
        segments.append((first.prefix_ids, first.overrides))
        segments += [(pieces[number].suffix_ids, pieces[number].overrides) for number in members]
    token_ids = np.concatenate([ids for ids, _ in segments])
    override_at, overrides = overrides_of(segments)
    token_ids[override_at] = 0
    reads = Reads.joined([pieces[number].reads for number in placed])
    return ForwardPlan(
        layout=ForwardLayout(
            tuple(_span([pieces[number] for number in members]) for members in groups)
        ),
        token_ids=token_ids,
        override_at=override_at,
        overrides=overrides,
        adapters=tuple(pieces[members[0]].adapter for members in groups),
        reads=reads,
        shares=_shares(pieces, groups, reads.value_lens),
        held=[None] * len(groups),
        stores=[None] * len(groups),
    )


def _span(members: list[Piece]) -> GroupSpan:
    first = members[0].span
    if len(members) == 1:
        return first
    spans = [member.span for member in members]
    reads = None
    if not all(span.reads_row_ends for span in spans):
        reads = np.concatenate([span.row_reads() for span in spans]).astype(np.int32)
    lens = np.concatenate([span.suffix_lens for span in spans])
    return GroupSpan(held=first.held, fresh=first.fresh, suffix_lens=lens, read_lens=reads)


def _shares(
    pieces: Sequence[Piece], groups: list[list[int]], value_lens: NDArray[np.int64]
) -> tuple[Share, ...]:
    shares: dict[int, Share] = {}
    bounds = bounds_of(value_lens)
    reads = start = 0
    for group, members in enumerate(groups):
        for number in members:
            piece = pieces[number]
            is_first = number == members[0]
            reads += len(piece.reads)
            stop = int(bounds[reads])
            tokens = piece.num_tokens if is_first else len(piece.suffix_ids)
            shares[number] = Share(group, slice(start, stop), tokens)
            start = stop
    return tuple(shares[number] for number in range(len(pieces)))


def overrides_of(
    segments: Sequence[tuple[Int32Array, OverrideArray]],
) -> tuple[NDArray[np.int64], OverrideArray]:
    """Find the embedding overrides in token ids that are to be concatenated.

    Args:
        segments: token ids, and the table of embeddings of which a negative id ``i`` names row
            ``~i``.

    Returns:
        Ascending places in the joined ids, int64 ``[n]``; the embeddings there, ``[n, hidden]``.
    """
    places, embeds = [], []
    start = 0
    for ids, table in segments:
        if len(table):
            inside = np.flatnonzero(ids < 0)
            places.append(start + inside)
            embeds.append(table[~ids[inside]])
        start += len(ids)
    if not places:
        return np.empty(0, dtype=np.int64), NO_OVERRIDES
    return np.concatenate(places), np.concatenate(embeds)
