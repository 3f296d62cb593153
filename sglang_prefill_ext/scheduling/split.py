"""Divide one request into pieces, each small enough for a forward; pure data."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.layout.tokens import GroupSpan
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.wire.arrays import (
    NO_OVERRIDES,
    Int32Array,
    OverrideArray,
    bounds_of,
    int_array,
)
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.reads import Reads

PrefixKey: TypeAlias = tuple[str, bytes]
"""Adapter and token ids of a whole prefix."""

_Cut: TypeAlias = tuple[int, int, int, int]
"""``(held, fresh, first row, last row)`` of a piece; the last row is not part of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """What one forward computes of one request.

    Attributes:
        span: the piece as a group of its own; `planner` joins spans of pieces that share a prefix.
        prefix_ids: the fresh prefix; int32 ``[span.fresh]``.
        suffix_ids: the rows' tokens after the prefix, row by row; int32.
        overrides: the request's table of embeddings; a negative token id ``i`` names row ``~i``.
        adapter: the LoRA adapter of the request; empty for none.
        reads: in the order of the piece's tokens.
        prefix_key: pieces with equal keys compute the same prefix and can share it. None where the
            piece is not the whole request, where the prefix is read, and where the request has
            embeddings of its own: these may lead to numbers beyond the range of the model's dtype,
            and NaN spreads in a group.
    """

    span: GroupSpan
    prefix_ids: Int32Array
    suffix_ids: Int32Array
    overrides: OverrideArray
    adapter: str
    reads: Reads
    prefix_key: PrefixKey | None

    @property
    def num_tokens(self) -> int:
        return len(self.prefix_ids) + len(self.suffix_ids)

    @property
    def uses_cache(self) -> bool:
        """Whether the prefix cache may supply a part of the prefix."""
        return self.prefix_key is not None and len(self.prefix_ids) > 0

    @property
    def is_replayable(self) -> bool:
        """Whether graphs can replay a forward of such pieces, apart from its `ForwardSize`.

        `eager_reason` in `forward/graphs/plan.py` judges a planned forward.
        """
        return not self.adapter and not len(self.overrides) and self.span.reads_row_ends

    def behind(self, cached: int) -> Piece:
        """The same piece without the first `cached` tokens of its prefix, which are held."""
        span = replace(self.span, held=cached, fresh=self.span.fresh - cached)
        return replace(self, span=span, prefix_ids=self.prefix_ids[cached:])


class RowStarts(NamedTuple):
    """Numbers of the first token and first read of each row, and at the end those of all.

    int64 ``[rows + 1]`` each.
    """

    tokens: NDArray[np.int64]
    reads: NDArray[np.int64]

    @classmethod
    def of(cls, rows: PackedRows) -> RowStarts:
        return cls(rows.prefix_len + bounds_of(rows.suffix_lens), rows.read_starts())


def unfit_row(rows: PackedRows, budget: ForwardBudget) -> int | None:
    """Return the length of the longest row that fits no forward; None if every row fits one.

    The length is that of the suffix: the prefix may be held.
    """
    if budget.fits(len(rows.tokens), rows.num_reads):
        return None
    lens = rows.suffix_lens.astype(np.int64)
    reads = np.diff(rows.read_starts())
    too_large = budget.num_bytes(lens, reads) > budget.max_bytes
    unfit = lens[too_large | (lens > budget.max_tokens)]
    return int(unfit.max()) if len(unfit) else None


def split_request(rows: PackedRows, budget: ForwardBudget, cached: int = 0) -> list[Piece]:
    """Divide a request into as few pieces as the budget allows; one if it fits.

    Every token behind the cached ones is computed exactly once. The prefix may be cut anywhere;
    rows stay whole and in order. Of all divisions into that number of pieces, this one has the
    smallest largest piece.

    Args:
        cached: how many tokens at the start of the prefix the first piece finds in the cache.

    Raises:
        PackingError: a row fits no forward; the caller has to ask `unfit_row` first.
    """
    starts = RowStarts.of(rows)
    if budget.fits(len(rows.tokens) - cached, rows.num_reads):
        cuts = [(cached, rows.prefix_len - cached, 0, rows.num_rows)]
    else:
        cuts = _balanced_cuts(rows, starts, budget, cached)
    return [_piece(rows, starts, cut) for cut in cuts]


def cacheable_prefix(rows: PackedRows) -> Int32Array | None:
    """Return the prefix of a request if the prefix cache may supply a part of it, else None."""
    return rows.tokens[: rows.prefix_len] if rows.prefix_len and _is_shareable(rows) else None


def _is_shareable(rows: PackedRows) -> bool:
    """Whether K/V of the prefix may be shared with other requests.

    Tokens of a prefix that are read are computed for the request alone. Prefixes are compared by
    their token ids, so no token may have an embedding override.
    """
    return not rows.prefix_reads and not len(rows.overrides)


def _balanced_cuts(
    rows: PackedRows, starts: RowStarts, budget: ForwardBudget, cached: int
) -> list[_Cut]:
    unfit = unfit_row(rows, budget)
    if unfit is not None:
        raise PackingError(f"a row of {unfit} tokens after the prefix fits no forward of {budget}")
    # Filling one piece after the other gives the fewest pieces for any limit on their tokens. A
    # higher limit never gives more, so bisection finds the lowest one that gives the fewest.
    fewest = len(_greedy_cuts(rows, starts, budget.max_tokens, budget, cached))
    lowest = max(int(rows.suffix_lens.max()), -(-(len(rows.tokens) - cached) // fewest))
    limit = lowest + bisect_left(
        range(lowest, budget.max_tokens),
        True,
        key=lambda tokens: len(_greedy_cuts(rows, starts, tokens, budget, cached)) <= fewest,
    )
    return _greedy_cuts(rows, starts, limit, budget, cached)


def _greedy_cuts(
    rows: PackedRows, starts: RowStarts, max_tokens: int, budget: ForwardBudget, cached: int
) -> list[_Cut]:
    """Fill piece after piece up to `max_tokens` and the budget's memory."""
    cuts: list[_Cut] = []
    held, prefix = cached, rows.prefix_len
    chunk = min(max_tokens, budget.longest_chunk(all_read=rows.prefix_reads > 0))
    while prefix - held > chunk:
        cuts.append((held, chunk, 0, 0))
        held += chunk
    row_bytes = budget.num_bytes(starts.tokens, starts.reads)
    first = 0
    while first < rows.num_rows:
        fresh = prefix - held
        tokens_end = starts.tokens[first] + max_tokens - fresh
        fresh_bytes = budget.num_bytes(fresh, min(fresh, rows.prefix_reads))
        bytes_end = row_bytes[first] + budget.max_bytes - fresh_bytes
        last = min(
            int(starts.tokens.searchsorted(tokens_end, side="right")),
            int(row_bytes.searchsorted(bytes_end, side="right")),
        )
        cuts.append((held, fresh, first, last - 1))
        held, first = prefix, last - 1
    return cuts


def row_piece(rows: PackedRows, starts: RowStarts, number: int, prefix_len: int) -> Piece:
    """One row as a piece of its own, whose prefix is the beginning of its prompt.

    Args:
        prefix_len: tokens of that prefix, more than `rows.prefix_len`; none of them is read or has
            an embedding of its own.
    """
    first, last = (int(starts.tokens[each]) for each in (number, number + 1))
    prompt = np.concatenate([rows.tokens[: rows.prefix_len], rows.tokens[first:last]])
    first_read, last_read = (int(starts.reads[each]) for each in (number, number + 1))
    ends = np.array([last_read - first_read - 1])
    read_lens = rows.read_lens[number : number + 1] if len(rows.read_lens) else None
    prefix_ids, lens = prompt[:prefix_len], int_array([len(prompt) - prefix_len])
    return Piece(
        span=GroupSpan(0, prefix_len, lens, read_lens=read_lens),
        prefix_ids=prefix_ids,
        suffix_ids=prompt[prefix_len:],
        overrides=NO_OVERRIDES,
        adapter=rows.adapter,
        reads=rows.read.part(first_read, last_read, slice(number, number + 1), ends),
        prefix_key=(rows.adapter, prefix_ids.tobytes()),
    )


def _piece(rows: PackedRows, starts: RowStarts, cut: _Cut) -> Piece:
    held, fresh, first, last = cut
    prefix_ids = rows.tokens[held : held + fresh]
    # The read tokens of a prefix are its last ones, and so they are the last ones of a part of it.
    unread = rows.prefix_len - rows.prefix_reads
    prefix_reads = max(0, held + fresh - max(held, unread))
    first_read = max(0, held - unread) if prefix_reads else int(starts.reads[first])
    last_read = first_read + prefix_reads + int(starts.reads[last] - starts.reads[first])
    ends = starts.reads[first + 1 : last + 1] - (first_read + 1)
    span = GroupSpan(
        held=held,
        fresh=fresh,
        suffix_lens=rows.suffix_lens[first:last],
        prefix_reads=prefix_reads,
        read_lens=rows.read_lens[first:last] if len(rows.read_lens) else None,
    )
    is_shared = span.num_tokens == len(rows.tokens) and _is_shareable(rows)
    return Piece(
        span=span,
        prefix_ids=prefix_ids,
        suffix_ids=rows.tokens[starts.tokens[first] : starts.tokens[last]],
        overrides=rows.overrides,
        adapter=rows.adapter,
        reads=rows.read.part(first_read, last_read, slice(first, last), ends),
        prefix_key=(rows.adapter, prefix_ids.tobytes()) if is_shared else None,
    )
