"""Derives packed rows from others (some rows, distinct rows, whole prompts), and joins results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.wire.arrays import (
    Float32Array,
    bounds_of,
    places_of_ranges,
    values_to_bytes,
)
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows
from sglang_prefill_ext.wire.read import Read, Vectors
from sglang_prefill_ext.wire.reads import values_per_read
from sglang_prefill_ext.wire.status import Status

RowNumbers: TypeAlias = NDArray[np.int64]
"""Indices of rows of a request, ascending; int64 ``[rows]``, at least one."""


def is_divisible(rows: PackedRows) -> bool:
    """Whether rows can be sent in requests of their own.

    They can if only their last tokens are read. Rows that a token is drawn for stay together.
    """
    return rows.num_rows > 1 and rows.reads_row_ends and rows.read.sampling is None


def take_rows(rows: PackedRows, numbers: RowNumbers) -> PackedRows:
    """Return a request for some rows of a divisible one, with the same prefix.

    The table of overrides stays whole, because token ids are indices into it.
    """
    if len(numbers) == rows.num_rows:
        return rows
    return _taken(rows, numbers, _read_of(rows.read, numbers))


def _taken(rows: PackedRows, numbers: RowNumbers, read: Read) -> PackedRows:
    """Return a request for some rows, with the same prefix and another `read`."""
    starts = rows.prefix_len + bounds_of(rows.suffix_lens)
    suffixes = rows.tokens[_places(starts, numbers)]
    tokens = np.concatenate([rows.tokens[: rows.prefix_len], suffixes])
    return replace(rows, tokens=tokens, suffix_lens=rows.suffix_lens[numbers], read=read)


def join_results(
    rows: PackedRows, parts: Sequence[tuple[RowNumbers, PackedResult]]
) -> PackedResult:
    """Join the successful results of parts that together have every row of a request once.

    Forwards and tokens are added up. The queue time ends when the first part begins, and the
    compute time when the last part ends.

    Raises:
        PackingError: a result does not have as many values as its rows ask for.
    """
    results = [result for _, result in parts]
    if len(parts) == 1:
        return results[0]
    queue_ms = min(each.queue_ms for each in results)
    return PackedResult(
        Status.OK,
        values=values_to_bytes(_joined_values(rows, parts)),
        forwards=sum(each.forwards for each in results),
        tokens_computed=sum(each.tokens_computed for each in results),
        queue_ms=queue_ms,
        compute_ms=max(each.queue_ms + each.compute_ms for each in results) - queue_ms,
        tokens_cached=min(each.tokens_cached for each in results),
        no_cache=all(each.no_cache for each in results),
    )


def _joined_values(
    rows: PackedRows, parts: Sequence[tuple[RowNumbers, PackedResult]]
) -> Float32Array:
    read = rows.read
    if isinstance(read, Vectors):  # only a result tells how wide vectors are
        numbers, result = parts[0]
        counts = np.full(rows.num_rows, len(result.row_values()) // len(numbers))
    else:
        counts = read.lens_of(0, rows.num_rows) + np.int64(values_per_read(0, read.num_best))
    starts = bounds_of(counts)
    joined = np.empty(int(starts[-1]), dtype=np.float32)
    for numbers, result in parts:
        values = result.row_values()
        if len(values) != int(counts[numbers].sum()):
            raise PackingError(f"an answer to {len(numbers)} rows has {len(values)} values")
        joined[_places(starts, numbers)] = values
    return joined


def _read_of(read: Read, numbers: RowNumbers) -> Read:
    """What is read of some rows, each at its last token."""
    if isinstance(read, Vectors) or not len(read.lens):
        return read
    ids = read.ids[_places(bounds_of(read.lens), numbers)]
    return msgspec.structs.replace(read, ids=ids, lens=read.lens[numbers])


def _places(starts: NDArray[np.int64], numbers: RowNumbers) -> NDArray[np.int64]:
    """Every index in the ranges of some rows, in the order of `numbers`."""
    firsts = starts[numbers]
    return places_of_ranges(firsts, starts[numbers + 1] - firsts)


def distinct_rows(rows: PackedRows) -> tuple[PackedRows, NDArray[np.int64] | None]:
    """Leave out each row whose tokens equal those of an earlier row of the request.

    A remaining row asks for the labels of all rows that it stands for. A request stays as it is if
    it reads more than the last tokens of rows, draws a token for every row, or otherwise cannot
    merge reads (`Labels.merges`).

    Returns:
        The distinct rows in order of first appearance; and for every value of the full answer, its
        index in theirs, int64 ``[rows.num_values]``, or None if no row was left out.
    """
    if not rows.reads_row_ends or not rows.read.merges:
        return rows, None
    suffixes = rows.tokens[rows.prefix_len :].tobytes()
    cuts = (bounds_of(rows.suffix_lens) * rows.tokens.itemsize).tolist()
    numbers: dict[bytes, int] = {}
    # Slices of bytes hash and compare at C speed: about 0.1 us a row.
    number_of = [numbers.setdefault(suffixes[a:b], len(numbers)) for a, b in pairwise(cuts)]
    if len(numbers) == rows.num_rows:
        return rows, None
    read, places = rows.read.merged(np.array(number_of))
    return _taken(rows, np.unique(number_of, return_index=True)[1], read), places


def whole_rows(rows: PackedRows) -> PackedRows:
    """Put the prefix in front of every row, so that each row is a whole prompt.

    The scheduler does this, so a shared prefix is sent only once.

    Raises:
        PackingError: something else is read than one vector a row.
    """
    if not rows.reads_row_ends:
        raise PackingError(
            "read_lens: an encoder makes one vector of a whole prompt; ask for no places in it"
        )
    prefix = rows.prefix_len
    if not prefix:
        return rows
    ends = np.cumsum(rows.suffix_lens)[:-1]
    parts = [rows.tokens[:prefix]] * (2 * rows.num_rows)
    parts[1::2] = np.split(rows.tokens[prefix:], ends)
    lens = rows.suffix_lens + np.int32(prefix)
    return replace(rows, tokens=np.concatenate(parts), prefix_len=0, suffix_lens=lens)
