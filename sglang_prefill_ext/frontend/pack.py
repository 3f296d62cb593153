"""Builds the packed rows of a call from token ids."""

from __future__ import annotations

from typing import Any

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
from sglang_prefill_ext.wire.flat import check_ids, shared_len
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Labels

FIELD = "query, items"
"""What the user calls the prompts."""


def pack_token_ids(
    query: Any,
    items: list[list[int]] | FlatRows,
    item_first: bool,
    labels: Labels,
    vocab_size: int,
    overrides: OverrideArray = NO_OVERRIDES,
) -> PackedRows:
    """Pack ``query + item`` rows, or ``item + query`` rows if `item_first`.

    Args:
        query: a list of ids, or an array if `items` are arrays.
        items: at least one.
        overrides: embeddings that negative ids in lists name; none if `item_first`.

    Raises:
        RequestError: a row is empty, or an id lies outside the vocabulary.
        TypeError: an element is not an integer.
    """
    if isinstance(items, FlatRows):
        ids, rows = np.asarray(query, dtype=np.int32), items
        check_ids(ids, vocab_size, field="query")
        check_ids(rows.values, vocab_size, field="items")
    else:
        if not (len(query) or item_first or all(items)):  # reported before a wrong id elsewhere
            raise empty_prompt("items")
        flat = flatten_ids([query, *items], vocab_size, field=FIELD, overrides=len(overrides))
        ids, rows = flat[: len(query)], FlatRows(flat[len(query) :], lens_of_rows(items))
    if not len(ids) and not rows.counts.all():
        raise empty_prompt("items")
    if item_first:
        rows, ids = _with_query_last(ids, rows), NO_INTS
    tokens, prefix_len, lens = shared_once(ids, rows)
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
