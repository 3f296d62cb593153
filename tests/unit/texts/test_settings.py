from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from sglang_prefill_ext.texts.settings import added_tokens, normalizers_of, settings_of, space_mark
from tests.unit.texts.made import PROVEN, json_of, settings
from tests.unit.texts.test_undivided import SPACES_MARKED


@pytest.mark.parametrize(
    ("normalizer", "pre_tokenizer", "mark"),
    [
        (None, pre_tokenizers.Metaspace("_", split=False), "_"),
        (None, pre_tokenizers.Metaspace("_", split=True), ""),
        (SPACES_MARKED, None, "_"),
        (SPACES_MARKED, pre_tokenizers.Split(" ", "isolated"), "_"),
        (SPACES_MARKED, pre_tokenizers.Split("a", "isolated"), ""),
        (SPACES_MARKED, pre_tokenizers.Whitespace(), ""),
        (normalizers.Sequence([normalizers.NFC(), SPACES_MARKED]), None, "_"),
        (normalizers.Replace("a", "_"), None, ""),
        (normalizers.Replace(" ", "__"), None, ""),
        (None, pre_tokenizers.Split(" ", "isolated"), ""),
        (None, None, ""),
    ],
)
def test_a_mark_stands_for_spaces_where_nothing_divides_a_text(
    normalizer: Any, pre_tokenizer: Any, mark: str
) -> None:
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    assert space_mark(settings(tokenizer)) == mark


@pytest.mark.parametrize("kind", PROVEN)
def test_settings_are_all_but_what_is_large(kind: str) -> None:
    whole, read = settings(Tokenizer.from_str(json_of(kind))), settings_of(json_of(kind))
    model = whole["model"]
    if not space_mark(whole):
        del model["vocab"]
        model.pop("merges", None)
    assert read == whole


def test_normalisers_in_sequences_count_one_by_one() -> None:
    tokenizer = Tokenizer(models.BPE())
    assert normalizers_of(settings(tokenizer)) == []
    inner = normalizers.Sequence([normalizers.NFC(), normalizers.Sequence([])])
    tokenizer.normalizer = normalizers.Sequence([inner, normalizers.Lowercase()])
    assert [each["type"] for each in normalizers_of(settings(tokenizer))] == ["NFC", "Lowercase"]


def test_added_tokens_that_depend_on_what_is_around_them_come_first() -> None:
    tokenizer = Tokenizer(models.BPE())
    assert added_tokens(settings(tokenizer)) == []
    left, right = AddedToken("<left>", lstrip=True), AddedToken("<right>", rstrip=True)
    tokenizer.add_tokens(["<a>", left, "<b>", AddedToken("word", single_word=True), right])
    assert added_tokens(settings(tokenizer)) == ["<left>", "word", "<right>", "<a>", "<b>"]


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        settings_of("{")
