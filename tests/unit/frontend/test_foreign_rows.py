from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sglang_prefill_ext.errors import PackingError, RequestError
from sglang_prefill_ext.frontend.foreign_rows import check_foreign_rows
from sglang_prefill_ext.frontend.packed_path import EncoderTraits, PackedPath
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import WHOLE_VECTOR, Labels, Read, Vectors
from sglang_prefill_ext.wire.sampling import Sampling
from tests.unit.frontend.links import StubLink, path_of

LABELS = Labels(int_array([4]))
ENCODER = EncoderTraits(token_types=2, longest_prompt=512, makes_numbers=False)


def path(longest: int = 8, **about: Any) -> PackedPath:
    link = StubLink()
    link.longest_packed = longest
    return path_of(link, **({"vocab_size": 100, "label_vocab_size": 90} | about))


def rows_of(tokens: list[int], read: Read = LABELS, **others: Any) -> PackedRows:
    return PackedRows(int_array(tokens), 1, int_array([1] * (len(tokens) - 1)), read, **others)


@pytest.mark.parametrize(
    ("tokens", "labels"), [([5, 100], [4]), ([5, 6], [4, 90]), ([5, 6], [-1, 4])]
)
def test_ids_beyond_the_vocabulary(tokens: list[int], labels: list[int]) -> None:
    with pytest.raises(PackingError, match="outside the vocabulary"):
        check_foreign_rows(rows_of(tokens, Labels(int_array(labels))), path())


def test_all_ids_of_the_vocabulary_are_taken() -> None:
    check_foreign_rows(rows_of([0, 99], Labels(int_array([0, 89]))), path())


def sampled(top_p: float) -> Sampling:
    return Sampling.one(temperature=1.0, top_p=top_p, min_p=0.0, top_k=5, seed=0, biases={})


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (Labels(num_best=1 << 28), "4096 MiB exceed the limit of 1024 MiB"),
        (Labels(num_best=92), "more tokens than the vocabulary of 90"),
        (Vectors(1 << 28), "2048 MiB exceed the limit of 1024 MiB"),
        (Labels(num_best=1, sampling=Sampling.joined([sampled(math.nan)] * 2)), "is drawn"),
        (Labels(num_best=1, sampling=Sampling.joined([sampled(0.5)] * 2)), "is drawn"),
    ],
    ids=["best", "too many", "vectors", "nan", "drawn"],
)
def test_what_no_front_end_asks_for(read: Read, error: str) -> None:
    with pytest.raises(PackingError, match=error):
        check_foreign_rows(rows_of([5, 6, 7], read), path())


def test_rows_as_large_as_the_whole_queue_are_taken() -> None:
    rows = PackedRows(int_array([5]), 0, int_array([1]), Labels(num_best=(1 << 27) - 2))
    check_foreign_rows(rows, path(label_vocab_size=1 << 27))


def test_no_more_rows_are_taken_than_may_wait() -> None:
    one = np.ones(2**20 + 1, dtype=np.int32)
    for count, refusal in ((2**20, nullcontext()), (2**20 + 1, pytest.raises(PackingError))):
        with refusal as error:
            check_foreign_rows(PackedRows(one[:count], 0, one[:count], LABELS), path())
    assert "1048577 packed rows exceed the limit of 1048576 (--prefill-only" in str(error.value)


@pytest.mark.parametrize(("rows", "fits"), [(2**16, True), (2**17, False)])
def test_the_whole_prompts_that_an_encoder_makes_of_rows_count(rows: int, fits: bool) -> None:
    """A prefix of 4000 tokens takes 1 GB if 65536 rows repeat it."""
    tokens, lens = np.ones(4000 + rows, dtype=np.int32), np.ones(rows, dtype=np.int32)
    asked, decoder = PackedRows(tokens, 4000, lens, Vectors(WHOLE_VECTOR)), path(5000)
    check_foreign_rows(asked, decoder)  # its scheduler does not repeat the prefix
    with nullcontext() if fits else pytest.raises(PackingError, match="MiB exceed the limit"):
        check_foreign_rows(asked, replace(decoder, encoder=ENCODER))


@pytest.mark.parametrize("embeds", [np.ones((1, 3)), np.full((1, 4), np.nan)], ids=["width", "nan"])
def test_embeddings_that_the_model_cannot_take(embeds: Any) -> None:
    rows = rows_of([5, -1], overrides=embeds.astype(np.float32))
    with pytest.raises(RequestError, match="embed_overrides"):
        check_foreign_rows(rows, path())


@pytest.mark.parametrize("encoder", [True, False])
def test_embeddings_for_a_model_that_takes_none(encoder: bool) -> None:
    """They would break a forward, in which others' requests may be."""
    rows, taking = rows_of([5, -1], overrides=np.ones((1, 4), dtype=np.float32)), path()
    check_foreign_rows(rows, taking)
    kind = replace(taking.embeddings, with_tokens=not encoder)
    with pytest.raises(PackingError, match="takes none"):
        check_foreign_rows(
            rows, replace(taking, encoder=ENCODER if encoder else None, embeddings=kind)
        )


def test_rows_longer_than_the_longest_prompt() -> None:
    check_foreign_rows(PackedRows(int_array([5] * 11), 5, int_array([3, 3]), LABELS), path())
    longer = PackedRows(int_array([5] * 11), 5, int_array([2, 4]), LABELS)
    with pytest.raises(PackingError, match="longer than the longest prompt of 8"):
        check_foreign_rows(longer, path())
