"""Checks that a library makes the same ids as Hugging Face's, of very many texts."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
import numpy as np

from sglang_prefill_ext.texts.libraries import Encoder
from sglang_prefill_ext.texts.sample_texts import UNREADABLE, ordinary_requests, splice_cases
from sglang_prefill_ext.texts.splice import Splice, whole_texts
from sglang_prefill_ext.wire.arrays import FlatRows

# Texts that are encoded in one call.
_CHUNK = 512
# Characters of a library's error, which may quote whole parts of a tokenizer.
_LONGEST_ERROR = 200
# One chunk of this many is decoded as well, which takes longer than encoding.
_DECODED = 4


class Comparison(msgspec.Struct, frozen=True):
    """Whether a library may encode for a tokenizer.

    Attributes:
        difference: what it fails at, or does differently from Hugging Face's; empty if nothing.
        texts: how many were compared.
        seconds: how long this took.
    """

    difference: str
    texts: int = 0
    seconds: float = 0.0


def compare(encoder: Encoder, reference: Encoder, texts: Sequence[str]) -> Comparison:
    """Compare a library with Hugging Face's: the ids of all texts, and the decoded ids of some."""
    start, compared = time.perf_counter(), 0
    difference = ""
    for number, first in enumerate(range(0, len(texts), _CHUNK)):
        if difference:
            break
        chunk = list(texts[first : first + _CHUNK])
        decoding = reference if number % _DECODED == 0 else None
        difference = _chunk_difference(encoder, chunk, reference.rows(chunk), decoding)
        compared += len(chunk)
    difference = difference or _readable_difference(encoder, reference)
    return Comparison(difference, compared, round(time.perf_counter() - start, 3))


def splice_difference(splice: Splice, encoder: Encoder, added: Sequence[str]) -> str:
    """Return a shared text for which spliced prompts differ from whole ones; empty if none.

    Args:
        added: tokens of the tokenizer's own.
    """
    for shared, items in splice_cases(added):
        for item_first in (False, True):
            spliced = splice.encode(encoder, shared, items, item_first=item_first)
            if spliced is None:
                continue
            whole = encoder.rows(whole_texts(shared, items, item_first))
            expected = splice.frame.around(whole)
            if not same(spliced.whole(item_first=item_first), expected):
                return ascii(shared)
    return ""


def us_per_text(encoder: Encoder) -> float:
    """Return the time (µs) for a text of ordinary requests; the best of several measurements."""
    best = float("inf")
    for request in ordinary_requests():
        start = time.perf_counter()
        encoder.rows(request)
        best = min(best, (time.perf_counter() - start) / len(request))
    return round(best * 1e6, 3)


def told(error: Exception) -> str:
    """Return the type of a library's error, and the beginning of its message."""
    return f"{type(error).__name__}: {str(error)[:_LONGEST_ERROR]}"


def same(a: FlatRows, b: FlatRows) -> bool:
    """Whether two sets of rows have the same ids."""
    return np.array_equal(a.counts, b.counts) and np.array_equal(a.values, b.values)


def _readable_difference(encoder: Encoder, reference: Encoder) -> str:
    for text in UNREADABLE:
        if _reads(encoder, text) and not _reads(reference, text):
            return f"{text!a}, which is refused otherwise"
    return ""


def _reads(encoder: Encoder, text: str) -> bool:
    try:
        encoder.rows([text])
    except Exception:  # whatever a library raises
        return False
    return True


def _chunk_difference(
    encoder: Encoder, texts: list[str], expected: FlatRows, decoding: Encoder | None
) -> str:
    try:
        rows = encoder.rows(texts)
        if not same(rows, expected):
            return _first_difference(texts, rows, expected)
        if decoding is not None and encoder.decode(rows.tolist()) != decoding.decode(rows.tolist()):
            return "decoding"
    except Exception as error:  # whatever a library raises
        return told(error)
    return ""


def _first_difference(texts: list[str], rows: FlatRows, expected: FlatRows) -> str:
    found = zip(texts, rows.tolist(), expected.tolist(), strict=True)
    return next(f"{text[:80]!a}" for text, ours, theirs in found if ours != theirs)
