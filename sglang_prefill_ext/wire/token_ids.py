"""Prompt token ids that would break the model, refused before they reach the scheduler."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np

from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.wire.packed import Int32Array

_EMPTY = (
    "The prompt is empty: it has no tokens (field `{field}`). "
    "Send at least one token, or a text that encodes to one."
)
_RANGE = (
    "The prompt (field `{field}`) contains the out-of-vocabulary token id {token}; "
    "valid ids are 0 to {last}."
)


def check_prompt(ids: Sequence[int], vocab_size: int, *, field: str) -> None:
    """Refuse an empty prompt and ids outside the embedding table.

    Args:
        ids: token ids of one prompt, of any integer size.
        vocab_size: rows of the embedding table.
        field: what the user calls this input.

    Raises:
        RequestError: names the field and the offending value.
    """
    if len(ids) == 0:
        raise RequestError(_EMPTY.format(field=field))
    low, high = min(ids), max(ids)
    if low < 0 or high >= vocab_size:
        token = low if low < 0 else high
        raise RequestError(_RANGE.format(field=field, token=token, last=vocab_size - 1))


def check_positions(tokens: int, longest: int, *, field: str) -> None:
    """Refuse a prompt of more tokens than an encoder has positions for.

    Raises:
        RequestError: names the field and both numbers.
    """
    if tokens > longest:
        raise RequestError(
            f"The prompt (field `{field}`) has {tokens} tokens; this model has positions for "
            f"{longest}. Send a shorter one."
        )


def flatten_ids(
    rows: Iterable[Sequence[int]], vocab_size: int, *, field: str, overrides: int = 0
) -> Int32Array:
    """Return the concatenated ids of `rows` as int32, refusing ids out of the vocabulary.

    Args:
        overrides: so many negative ids are none of the user's, but name embeddings.

    Raises:
        RequestError: an id lies outside ``-overrides <= id < vocab_size``.
        TypeError: an element is not an integer.
    """
    rows = list(rows)
    try:
        flat = np.frombuffer(array("q", chain.from_iterable(rows)), dtype=np.int64)
    except OverflowError:
        _refuse_out_of_vocabulary(rows, vocab_size, field)
        raise
    if len(flat) and (int(flat.min()) < -overrides or int(flat.max()) >= vocab_size):
        _refuse_out_of_vocabulary(rows, vocab_size, field)
    return flat.astype(np.int32)


def _refuse_out_of_vocabulary(rows: list[Sequence[int]], vocab_size: int, field: str) -> None:
    for row in rows:
        if row:
            check_prompt(row, vocab_size, field=field)
