"""Label token ids: one list for all items, or one list an item."""

from __future__ import annotations

from typing import Any

from sglang_prefill_ext.wire.flat import FlatRows, flat_labels
from sglang_prefill_ext.wire.packed import NO_INTS, Int32Array, int_array


def pack_labels(
    labels: Any, num_items: int, vocab_size: int
) -> tuple[Int32Array, Int32Array] | None:
    """Return ``(label_ids, label_lens)`` of `PackedRows`, or None if anything is unusual.

    None means "let SGLang judge": its own validation then produces its own error, or
    accepts what we were too strict about.
    """
    if isinstance(labels, FlatRows):
        return flat_labels(labels, num_items, vocab_size)
    if not isinstance(labels, list) or not labels:
        return None
    if not isinstance(labels[0], list):
        return (int_array(labels), NO_INTS) if _is_plain(labels, vocab_size) else None
    if len(labels) != num_items or not all(_is_plain(one, vocab_size) for one in labels):
        return None
    flat = [token for one in labels for token in one]
    return int_array(flat), int_array([len(one) for one in labels])


def num_labels(labels: tuple[Int32Array, Int32Array], num_items: int) -> int:
    """Labels of all items together, given what `pack_labels` returns."""
    ids, lens = labels
    return len(ids) if len(lens) else num_items * len(ids)


def _is_plain(labels: Any, vocab_size: int) -> bool:
    return (
        isinstance(labels, list)
        and bool(labels)
        and all(type(token) is int and 0 <= token < vocab_size for token in labels)
        and len(set(labels)) == len(labels)
    )
