"""Ways to encode the texts of one request, and how their results are compared."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, islice
from random import Random
from typing import Any, TypeAlias

import numpy as np

from bench.workloads import Shape
from sglang_prefill_ext.modelmaker import corpus
from sglang_prefill_ext.texts.frame import with_ids
from sglang_prefill_ext.texts.libraries import Encoder, flat
from sglang_prefill_ext.texts.splice import Splice
from sglang_prefill_ext.wire.arrays import NO_INTS, FlatRows

Request: TypeAlias = tuple[str, list[str]]
"""A query and its items."""

Way: TypeAlias = Callable[[str, list[str]], Any]
"""Encodes a query with its items. Returns the ids of rows as lists, as `FlatRows`, or as shared ids
with the rest of each row."""

ONE_BY_ONE = "stock, one by one"
BATCH = "stock, batch"
SERVED = "extension"


def draw_texts(shape: Shape, count: int, seed: int) -> list[Request]:
    """Draw different requests of text whose words are as unequally frequent as in a language.

    Args:
        shape: of each request, in words.
    """
    words = sorted(set(chain.from_iterable(map(str.split, islice(corpus.lines(), 20_000)))))
    draw = Random(seed)
    draw.shuffle(words)
    frequencies = [1 / rank for rank in range(1, len(words) + 1)]

    def text(length: int) -> str:
        return " ".join(draw.choices(words, frequencies, k=length))

    return [
        (f"{text(shape.query_tokens)}: ", [text(shape.item_tokens) for _ in range(shape.items)])
        for _ in range(count)
    ]


def stock_ways(tokenizer: Any) -> dict[str, Way]:
    """SGLang's ways: by default, and with ``--enable-tokenizer-batch-encode``."""

    def one_by_one(query: str, items: list[str]) -> list[list[int]]:
        return [tokenizer([f"{query}{item}"])["input_ids"][0] for item in items]

    def batch(query: str, items: list[str]) -> list[list[int]]:
        ids: list[list[int]] = tokenizer([f"{query}{item}" for item in items])["input_ids"]
        return ids

    return {ONE_BY_ONE: one_by_one, BATCH: batch}


def encoder_ways(load: Callable[[], Encoder], splice: Splice) -> dict[str, Way]:
    """Ways of a tokenizer library: alone, and with the query encoded once for all items.

    Args:
        load: makes the encoder; each way gets its own, because libraries cache words.
    """
    alone, cutting = load(), load()

    def whole(query: str, items: list[str]) -> FlatRows:
        return splice.frame.around(alone.rows([query + item for item in items]))

    def spliced(query: str, items: list[str]) -> Any:
        found = splice.encode(cutting, query, items, item_first=False)
        assert found is not None, "queries have boundaries"
        return found.shared, found.rest

    return {alone.name: whole, f"{alone.name}, spliced": spliced}


def rows_of(found: Any) -> FlatRows:
    """Return the ids of whole prompts from what any way returned."""
    if isinstance(found, tuple):
        return with_ids(found[1], found[0], NO_INTS)
    return found if isinstance(found, FlatRows) else flat(found)


def mismatches(found: FlatRows, wanted: FlatRows) -> int:
    """Count the prompts whose ids differ."""
    pairs = zip(found.rows(), wanted.rows(), strict=True)
    return sum(not np.array_equal(ours, theirs) for ours, theirs in pairs)
