"""Build the packed request of a call from token ids; before that, how long it gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.wire.arrays import NO_INTS, Int32Array, int_array
from sglang_prefill_ext.wire.checks import check_prompt, flatten_ids, wrong
from sglang_prefill_ext.wire.flat import FlatRows, pack_flat
from sglang_prefill_ext.wire.overrides import NO_OVERRIDES, OverrideArray
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Labels

_FIELD = "query, items"
"""What the user calls the prompts."""


@dataclass(frozen=True, slots=True)
class PromptLengths:
    """Tokens of the prompts of a scoring call.

    Attributes:
        query: which all prompts have.
        count: of items.
        longest_item, all_items: of one item, and of all.
    """

    query: int
    count: int
    longest_item: int
    all_items: int

    @classmethod
    def of(
        cls, query: Sequence[int] | Int32Array, items: Sequence[Sequence[int]] | FlatRows
    ) -> PromptLengths:
        """The lengths of at least one item's prompt."""
        if isinstance(items, FlatRows):
            return cls(len(query), len(items), int(items.counts.max()), len(items.values))
        lens = list(map(len, items))
        return cls(len(query), len(lens), max(lens), sum(lens))

    @property
    def longest_prompt(self) -> int:
        return self.query + self.longest_item

    def packed(self, *, repeats_query: bool) -> int:
        """Tokens of all prompts, with the query once, or once for every item."""
        return (self.count if repeats_query else 1) * self.query + self.all_items


def too_long(lengths: PromptLengths, longest: int) -> RequestError:
    """The error for prompts that no model takes, and that would take much memory to refuse."""
    return wrong(
        _FIELD,
        f"a prompt has {lengths.longest_prompt} tokens, the model takes {longest} at most. "
        "Send a shorter query or shorter items.",
    )


def common_prefix_len(rows: Sequence[list[int]]) -> int:
    """Return how many leading tokens all rows share; 0 without rows.

    The lexicographically smallest and largest row differ first where any two rows differ
    first, so comparing these two is enough; finding them runs at C speed for lists.
    """
    if not rows:
        return 0
    low, high = min(rows), max(rows)
    for position, (a, b) in enumerate(zip(low, high, strict=False)):
        if a != b:
            return position
    return min(len(low), len(high))


def shared_prefix_len(rows: Sequence[list[int]], known: int = 0) -> int:
    """Return the prefix length of a packed request: at least one token stays in every row.

    A single row has nothing to share with, so its prefix is 0 and no merge is needed.

    Args:
        rows: what follows the `known` tokens in each row; may be empty where `known` > 0.
        known: tokens that all rows are known to share in front of `rows`.

    Returns:
        The length in tokens, counted from the start of the prompts.
    """
    if len(rows) <= 1:
        return 0
    shortest = min(map(len, rows))
    return max(0, min(known + common_prefix_len(rows), known + shortest - 1))


def pack_token_ids(
    query: list[int],
    items: list[list[int]],
    item_first: bool,
    read: Labels,
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
        return pack_flat(flat[: len(query)], rest, True, read, vocab_size)
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
    return PackedRows(tokens, prefix, int_array(lens), read, overrides=overrides)


def pack_rows(
    rows: list[list[int]],
    read: Labels,
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
    return PackedRows(tokens, prefix, lens, read, read_lens=read_lens, overrides=overrides)
