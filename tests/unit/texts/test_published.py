"""Tokenizers as they are published: Mistral's, which come with SGLang's packages."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import mistral_common
import pytest

from bench.encode.tokenizers import loaded
from sglang_prefill_ext.config import TokenizerChoice
from sglang_prefill_ext.texts import libraries, sample_texts
from sglang_prefill_ext.texts.comparison import compare
from sglang_prefill_ext.texts.libraries import TokenizerCopy
from tests.unit.texts.test_splice import check

TEKKEN = "tekken_240911.json"
SENTENCE_PIECE = ("tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3")


@cache
def source_of(name: str) -> str:
    """The ``tokenizer.json`` of a published tokenizer, as transformers makes it."""
    file = Path(mistral_common.__file__).parent / "data" / name
    return str(loaded(file).backend_tokenizer.to_str())


@pytest.mark.parametrize("name", [TEKKEN, *SENTENCE_PIECE])
def test_texts_are_cut(name: str) -> None:
    source = source_of(name)
    ways = [check(source, shared, items) for shared, items in sample_texts.splice_cases(["[INST]"])]
    assert sum(ways) > len(ways)
    assert check(source, "Is this a fruit? ", ["an apple", "a chair"]) == 2


def test_a_library_makes_the_same_ids() -> None:
    source = source_of(TEKKEN)
    encoder = libraries.load(TokenizerChoice.FASTOKENS, source)
    texts = sample_texts.texts(20_000, ["[INST]", "</s>"], seed=3)
    assert compare(encoder, TokenizerCopy(source), texts).difference == ""
