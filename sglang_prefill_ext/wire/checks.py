"""Checks of a call's size and of its token ids.

A call that is too large is refused before anything of that size is made. Token ids that would break
the model are refused before they reach the scheduler.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.config.knobs import flag_name
from sglang_prefill_ext.errors import RequestError, TooManyItemsError, WrongTypeError
from sglang_prefill_ext.wire.arrays import Int32Array

TOKEN_BYTES = 4
"""Bytes of a token in a packed request."""

NUMBER_BYTES = 32
"""Bytes of a number in an answer: a Python object in a list."""

MOST_REPEATED_CHARACTERS = 1 << 25
"""Most characters that repeating a text for every item may add. Encoding takes about 30 bytes for
each."""


def wrong(field: str, message: str) -> RequestError:
    """Return the error for a field of a request."""
    return RequestError(f"{field}: {message}", field=field)


def check_count(
    count: int, config: PrefillOnlyConfig, *, field: str = "items", noun: str = "items"
) -> None:
    """Refuse a call of too many items or prompts.

    Args:
        field: what the user calls them.

    Raises:
        TooManyItemsError: more than `max_items`.
    """
    if count > config.max_items:
        raise TooManyItemsError(
            f"{field}: {count} {noun} exceed the limit of {config.max_items}. "
            f"Split the request, or raise {flag_name('max_items')}.",
            field=field,
        )


def check_memory(
    config: PrefillOnlyConfig, *, tokens: int = 0, numbers: int = 0, field: str = "items"
) -> None:
    """Refuse a call that alone takes more memory than all waiting requests together may.

    Args:
        tokens: of the packed request.
        numbers: of the answer.
        field: what the user should make smaller; the error names it.

    Raises:
        RequestError: more than `max_queued_mib`.
    """
    needed = tokens * TOKEN_BYTES + numbers * NUMBER_BYTES
    if needed > config.max_queued_mib << 20:
        raise wrong(
            field,
            f"{tokens} tokens and {numbers} numbers of the answer take {needed >> 20} MiB, which "
            f"is more than the limit of {config.max_queued_mib} MiB. Split the request, or raise "
            f"{flag_name('max_queued_mib')}.",
        )


def check_repeated(text: str, items: Sequence[str]) -> None:
    """Refuse a text that would be repeated too often for the items that came with it.

    Raises:
        RequestError: more than `MOST_REPEATED_CHARACTERS`.
    """
    if len(text) * (len(items) - 1) > MOST_REPEATED_CHARACTERS:
        raise wrong(
            "query",
            f"its {len(text)} characters would be repeated for {len(items)} items; "
            f"{MOST_REPEATED_CHARACTERS} in all is the limit. Send fewer items, or token ids.",
        )


def is_unicode(text: str | tuple[str, str]) -> bool:
    """Whether there are no lone surrogates, which JSON can express but no tokenizer encodes."""
    try:
        "".join(text).encode()
    except UnicodeEncodeError:
        return False
    return True


def check_unicode(texts: Iterable[str | tuple[str, str]]) -> None:
    """Refuse texts that no tokenizer encodes.

    Raises:
        WrongTypeError: a text, or one of a pair, is not `is_unicode`.
    """
    for text in texts:
        if not is_unicode(text):
            raise WrongTypeError(
                f"The text {text!r:.80} has lone surrogates, which no tokenizer reads. "
                "Send whole characters."
            )


def empty_prompt(field: str) -> RequestError:
    """Return the error for a prompt without a token, in what the user calls `field`."""
    return RequestError(
        f"The prompt is empty: it has no tokens (field `{field}`). "
        "Send at least one token, or a text that encodes to one.",
        field=field,
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
        raise empty_prompt(field)
    low, high = min(ids), max(ids)
    if low < 0 or high >= vocab_size:
        token = low if low < 0 else high
        raise RequestError(
            f"The prompt (field `{field}`) contains the out-of-vocabulary token id {token}; "
            f"valid ids are 0 to {vocab_size - 1}.",
            field=field,
        )


def check_positions(tokens: int, longest: int, *, field: str) -> None:
    """Refuse a prompt of more tokens than an encoder has positions for.

    Raises:
        RequestError: names the field and both numbers.
    """
    if tokens > longest:
        raise RequestError(
            f"The prompt (field `{field}`) has {tokens} tokens; this model has positions for "
            f"{longest}. Send a shorter one.",
            field=field,
        )


def flatten_ids(
    rows: Iterable[Sequence[int]], vocab_size: int, *, field: str, overrides: int = 0
) -> Int32Array:
    """Return the concatenated ids of `rows` as int32, refusing ids out of the vocabulary.

    Args:
        overrides: number of embeddings that negative ids may name.

    Raises:
        RequestError: an id lies outside ``-overrides <= id < vocab_size``.
        WrongTypeError: an element is not an integer.
    """
    rows = list(rows)
    try:
        # Making an `array` from a list takes little more than half the time of an iterator.
        ids = array("i", [*chain.from_iterable(rows)])
        flat: Int32Array = np.frombuffer(ids, dtype=np.int32)
        # As unsigned numbers, negative ids are large: one comparison finds both kinds.
        shifted = (flat + overrides if overrides else flat).view(np.uint32)
        fits = not len(flat) or np.maximum.reduce(shifted) < vocab_size + overrides
    except OverflowError:
        fits = False
    except TypeError as error:
        wrong = next(each for each in chain.from_iterable(rows) if not hasattr(each, "__index__"))
        raise WrongTypeError(
            f"The prompt (field `{field}`) contains {wrong!r:.80}, which is no token id. "
            "Send integers.",
            field=field,
        ) from error
    if not fits:
        for row in filter(None, rows):
            check_prompt(row, vocab_size, field=field)
    return flat
