"""Build packed requests of flat arrays, without an object for every token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.wire.arrays import NO_INTS, Int32Array, from_bytes
from sglang_prefill_ext.wire.checks import check_prompt, wrong
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Labels

# Tokens of every row that are compared at a time: at first, and at most.
_FIRST_LOOK, _LARGEST_LOOK = 16, 1024


@dataclass(frozen=True, slots=True)
class FlatRows:
    """Rows of numbers, one behind the other.

    Attributes:
        values: int32 ``[sum(counts)]``.
        counts: length of each row, int32 ``[rows]``; none is negative.
    """

    values: Int32Array
    counts: Int32Array

    def __len__(self) -> int:
        return len(self.counts)

    def starts(self) -> NDArray[np.int64]:
        """Where each row begins in `values`, int64 ``[rows]``."""
        ends: NDArray[np.int64] = np.cumsum(self.counts, dtype=np.int64)
        return ends - self.counts

    def first(self, count: int) -> FlatRows:
        """The first rows, without copying."""
        counts = self.counts[:count]
        return FlatRows(self.values[: int(counts.sum(dtype=np.int64))], counts)

    def rows(self) -> list[Int32Array]:
        """One array a row, without copying."""
        return np.split(self.values, self.starts()[1:]) if len(self) else []

    def tolist(self) -> list[list[int]]:
        """One list a row."""
        values = self.values.tolist()
        ends = np.cumsum(self.counts, dtype=np.int64).tolist()
        return [values[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def flat_rows(values: bytes, counts: bytes, *, field: str) -> FlatRows:
    """Read rows from little-endian int32 bytes, without copying.

    Args:
        field: what the user calls the rows.

    Raises:
        RequestError: the bytes are no whole numbers, or do not fit together.
    """
    rows = FlatRows(
        int32_array(values, field=f"{field}.values"), int32_array(counts, field=f"{field}.counts")
    )
    if len(rows) and int(rows.counts.min()) < 0:
        raise wrong(f"{field}.counts", f"a count is {int(rows.counts.min())}. Send 0 or more.")
    total = int(rows.counts.sum(dtype=np.int64))
    if total != len(rows.values):
        raise wrong(
            f"{field}.counts",
            f"the counts add up to {total}, but there are {len(rows.values)} values. "
            "Send the length of every row.",
        )
    return rows


def int32_array(data: bytes, *, field: str) -> Int32Array:
    """Read little-endian int32 bytes, without copying.

    Raises:
        RequestError: their number is no multiple of 4.
    """
    if len(data) % 4:
        raise wrong(field, f"{len(data)} bytes are no int32 numbers. Send 4 bytes for each.")
    return from_bytes(data)


def unpacked(rows: PackedRows) -> tuple[Int32Array, FlatRows]:
    """Return the prefix of packed rows and their suffixes."""
    prefix, rest = np.split(rows.tokens, [rows.prefix_len])
    return prefix, FlatRows(rest, rows.suffix_lens)


def pack_flat(
    query: Int32Array,
    items: FlatRows,
    item_first: bool,
    labels: Labels,
    vocab_size: int,
) -> PackedRows:
    """Pack ``query + item`` rows (``item + query`` if `item_first`); see `pack.pack_token_ids`.

    Args:
        items: at least one.

    Raises:
        RequestError: a row is empty, or an id lies outside the vocabulary.
    """
    check_ids(query, vocab_size, field="query")
    check_ids(items.values, vocab_size, field="items")
    if not len(query) and not items.counts.all():
        check_prompt([], vocab_size, field="items")
    if item_first:
        items, query = _with_query_last(query, items), NO_INTS
    if len(items) == 1:  # nothing to share with
        lens = items.counts + np.int32(len(query))
        return PackedRows(np.concatenate([query, items.values]), 0, lens, labels)
    inside = min(_common_beginning(items), int(items.counts.min()) - 1)
    lens, prefix_len = items.counts - np.int32(inside), len(query) + inside
    if inside < 0:  # an empty item: what is read is the query's last token
        parts = [query[:-1], np.insert(items.values, items.starts(), query[-1])]
    elif inside:
        parts = [query, items.values[:inside], _without_beginnings(items, inside)]
    else:
        parts = [query, items.values] if len(query) else [items.values]
    tokens = np.concatenate(parts) if len(parts) > 1 else parts[0]
    return PackedRows(tokens, prefix_len, lens, labels)


def check_ids(ids: Int32Array, vocab_size: int, *, field: str) -> None:
    """Refuse ids outside the embedding table; there may be none at all.

    Raises:
        RequestError: an id lies outside ``0 <= id < vocab_size``.
    """
    # Without their sign negative ids are large ones: one pass finds both.
    if len(ids) and int(ids.view(np.uint32).max()) >= vocab_size:
        check_prompt([int(ids.min()), int(ids.max())], vocab_size, field=field)


def flat_labels(labels: FlatRows, num_items: int, vocab_size: int) -> Labels | None:
    """Return what is to be read, or None if anything is unusual.

    Args:
        labels: one row, for all items, or one row an item; see `labels.pack_labels`.
    """
    ids, counts = labels.values, labels.counts
    if not len(labels) or not counts.all() or len(labels) not in (1, num_items):
        return None
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        return None
    rows = np.repeat(np.arange(len(labels), dtype=np.int64), counts)
    if len(np.unique(rows * vocab_size + ids)) < len(ids):
        return None
    return Labels(ids, counts if len(labels) > 1 else NO_INTS)


def _with_query_last(query: Int32Array, items: FlatRows) -> FlatRows:
    values = np.concatenate([part for item in items.rows() for part in (item, query)])
    return FlatRows(values, items.counts + np.int32(len(query)))


def _without_beginnings(rows: FlatRows, length: int) -> Int32Array:
    """The values of rows but the first `length` of each, which is less than any has."""
    starts = rows.starts()
    edges = np.zeros(len(rows.values), dtype=np.int8)  # one byte a value, as there may be many
    edges[starts], edges[starts + length] = 1, -1
    kept: Int32Array = rows.values[np.cumsum(edges, dtype=np.int8) == 0]
    return kept


def _common_beginning(rows: FlatRows) -> int:
    """Tokens with which all rows begin alike."""
    shortest, starts = int(rows.counts.min()), rows.starts()
    done, width = 0, _FIRST_LOOK
    while done < shortest:
        columns = np.arange(done, min(done + width, shortest))
        table = rows.values[starts[:, None] + columns]
        differ = (table != table[0]).any(axis=0)
        if differ.any():
            return done + int(differ.argmax())
        done, width = done + len(columns), min(2 * width, _LARGEST_LOOK)
    return shortest
