"""Build the packed request of a call: from token ids, or from encoded texts."""

from __future__ import annotations

from typing import Any

import numpy as np

from sglang_prefill_ext.frontend.common_prefix import shared_prefix_len
from sglang_prefill_ext.wire.flat import FlatRows, pack_flat
from sglang_prefill_ext.wire.overrides import NO_OVERRIDES, OverrideArray
from sglang_prefill_ext.wire.packed import NO_INTS, Int32Array, PackedRows, int_array
from sglang_prefill_ext.wire.token_ids import check_prompt, flatten_ids

_FIELD = "query, items"
"""What the user calls the prompts."""


def pack_token_ids(
    query: list[int],
    items: list[list[int]],
    item_first: bool,
    labels: tuple[Int32Array, Int32Array],
    vocab_size: int,
    overrides: OverrideArray = NO_OVERRIDES,
) -> PackedRows:
    """Pack ``query + item`` rows (``item + query`` if `item_first`), all given as token ids.

    Args:
        overrides: embeddings that negative ids name; not where `item_first`.

    Raises:
        RequestError: a row is empty, or an id lies outside the vocabulary.
        TypeError: an element is not an integer.
    """
    if item_first:
        flat = flatten_ids([query, *items], vocab_size, field=_FIELD)
        rest = FlatRows(flat[len(query) :], int_array(list(map(len, items))))
        return pack_flat(flat[: len(query)], rest, True, labels, vocab_size)
    if not query and not all(items):
        check_prompt([], vocab_size, field="items")
    prefix = shared_prefix_len(items, known=len(query))
    inside = prefix - len(query)
    if inside == 0:  # the usual case, in which nothing needs to be copied
        parts = [query, *items]
        lens = list(map(len, items))
    elif inside > 0:
        parts = [query, items[0][:inside], *(item[inside:] for item in items)]
        lens = [len(item) - inside for item in items]
    else:
        tail = query[prefix:]
        parts = [query[:prefix], *(part for item in items for part in (tail, item))]
        lens = [len(tail) + len(item) for item in items]
    tokens = flatten_ids(parts, vocab_size, field=_FIELD, overrides=len(overrides))
    return PackedRows(tokens, prefix, int_array(lens), *labels, overrides=overrides)


def pack_rows(
    rows: list[list[int]],
    labels: tuple[Int32Array, Int32Array],
    vocab_size: int,
    *,
    longest_prefix: int | None = None,
    read_lens: Int32Array = NO_INTS,
    overrides: OverrideArray = NO_OVERRIDES,
) -> PackedRows:
    """Pack whole prompts, given as token ids.

    Args:
        longest_prefix: tokens that rows may share at most; None for all that are equal.
        read_lens: see `PackedRows`.
        overrides: embeddings that negative ids name.

    Raises:
        RequestError: a row is empty, or an id lies outside the vocabulary.
        TypeError: an element is not an integer.
    """
    if not all(rows):
        check_prompt([], vocab_size, field=_FIELD)
    prefix = shared_prefix_len(rows)
    if longest_prefix is not None:
        prefix = min(prefix, longest_prefix)
    parts: list[Any] = [rows[0][:prefix], *(row[prefix:] for row in rows)]
    tokens = flatten_ids(parts, vocab_size, field=_FIELD, overrides=len(overrides))
    lens = np.fromiter(map(len, rows), dtype=np.int32, count=len(rows)) - np.int32(prefix)
    return PackedRows(tokens, prefix, lens, *labels, read_lens=read_lens, overrides=overrides)
