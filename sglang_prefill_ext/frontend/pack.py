"""Builds the packed rows of a call from token ids."""

from __future__ import annotations

import numpy as np

from sglang_prefill_ext.wire.arrays import (
    NO_INTS,
    NO_OVERRIDES,
    FlatRows,
    Int32Array,
    OverrideArray,
    lens_of_rows,
)
from sglang_prefill_ext.wire.checks import empty_prompt, flatten_ids
from sglang_prefill_ext.wire.flat import check_ids
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Labels

# Tokens of every row that `shared_len` compares in a step: in the first step, and at most.
_FIRST_LOOK, _LARGEST_LOOK = 16, 1024

FIELD = "query, items"
"""What the user calls the prompts."""


def pack_token_ids(
    query: list[int],
    items: list[list[int]],
    item_first: bool,
    labels: Labels,
    vocab_size: int,
    overrides: OverrideArray = NO_OVERRIDES,
) -> PackedRows:
    """Pack ``query + item`` rows, or ``item + query`` rows if `item_first`, of lists of token ids.

    Args:
        overrides: embeddings that negative ids name; none if `item_first`.

    Raises:
        RequestError: a row is empty, or an id lies outside the vocabulary.
        TypeError: an element is not an integer.
    """
    if not (query or item_first or all(items)):  # reported before a wrong id of another row
        raise empty_prompt("items")
    flat = flatten_ids([query, *items], vocab_size, field=FIELD, overrides=len(overrides))
    rows = FlatRows(flat[len(query) :], lens_of_rows(items))
    return _pack_checked(flat[: len(query)], rows, item_first, labels, overrides)


def pack_flat(
    query: Int32Array,
    items: FlatRows,
    item_first: bool,
    labels: Labels,
    vocab_size: int,
) -> PackedRows:
    """Pack ``query + item`` rows, or ``item + query`` rows if `item_first`.

    Args:
        items: at least one.

    Raises:
        RequestError: a row is empty, or an id lies outside the vocabulary.
    """
    check_ids(query, vocab_size, field="query")
    check_ids(items.values, vocab_size, field="items")
    return _pack_checked(query, items, item_first, labels)


def _pack_checked(
    query: Int32Array,
    items: FlatRows,
    item_first: bool,
    labels: Labels,
    overrides: OverrideArray = NO_OVERRIDES,
) -> PackedRows:
    """Pack rows whose ids lie in the vocabulary, or are negative for `overrides`."""
    if not len(query) and not items.counts.all():
        raise empty_prompt("items")
    if item_first:
        items, query = _with_query_last(query, items), NO_INTS
    tokens, prefix_len, lens = shared_once(query, items)
    return PackedRows(tokens, prefix_len, lens, labels, overrides=overrides)


def shared_once(
    front: Int32Array, rows: FlatRows, most: int | None = None
) -> tuple[Int32Array, int, Int32Array]:
    """Lay out ``front + row`` of every row with their common prefix once; no such row is empty.

    Args:
        most: most leading tokens of the rows that may join the prefix; None for no limit.

    Returns:
        Tokens, prefix length and suffix lengths, as `PackedRows` has them. A single row has nothing
        to share, so its prefix is empty.
    """
    if len(rows) == 1:
        return np.concatenate([front, rows.values]), 0, rows.counts + np.int32(len(front))
    inside = shared_len(rows)
    if most is not None:
        inside = min(inside, most)
    if inside < 0:  # a row is empty: `front`'s last token, which is read there, begins each suffix
        parts = [front[:-1], np.insert(rows.values, rows.starts(), front[-1])]
    elif inside:
        parts = [front, rows.values[:inside], _without_beginnings(rows, inside)]
    else:
        parts = [front, rows.values] if len(front) else [rows.values]
    tokens = np.concatenate(parts) if len(parts) > 1 else parts[0]
    return tokens, len(front) + inside, rows.counts - np.int32(inside)


def shared_len(rows: FlatRows) -> int:
    """How many leading tokens several rows share, at most all but one of the shortest row.

    -1 if the shortest row is empty.
    """
    shortest, starts = int(np.minimum.reduce(rows.counts)), rows.starts()
    if shortest and ((first := rows.values[starts]) != first[0]).any():
        return 0  # the usual case
    done, width = 0, _FIRST_LOOK
    while done < shortest:
        columns = np.arange(done, min(done + width, shortest))
        table = rows.values[starts[:, None] + columns]
        differ = (table != table[0]).any(axis=0)
        if differ.any():
            return done + int(differ.argmax())
        done, width = done + len(columns), min(2 * width, _LARGEST_LOOK)
    return shortest - 1


def _with_query_last(query: Int32Array, items: FlatRows) -> FlatRows:
    values = np.concatenate([part for item in items.rows() for part in (item, query)])
    return FlatRows(values, items.counts + np.int32(len(query)))


def _without_beginnings(rows: FlatRows, length: int) -> Int32Array:
    """The values of all rows without the first `length` of each; every row is longer than that."""
    starts = rows.starts()
    edges = np.zeros(len(rows.values), dtype=np.int8)  # one byte a value, as there may be many
    edges[starts], edges[starts + length] = 1, -1
    kept: Int32Array = rows.values[np.cumsum(edges, dtype=np.int8) == 0]
    return kept
