from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from sglang_prefill_ext.texts import proof
from tests.unit.texts.made import settings

VOCABULARY = {token: number for number, token in enumerate(["a", "b", "_", "a_", "_b", "__"])}
MERGES = [("_", "b"), ("_", "_")]
SPACES_MARKED = normalizers.Replace(" ", "_")


def undivided(merges: list[tuple[str, str]] = MERGES, **options: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(VOCABULARY, merges, **{"unk_token": "a"} | options))
    tokenizer.normalizer = SPACES_MARKED
    return tokenizer


def test_a_merge_across_a_boundary_gives_other_ids() -> None:
    """Which is why such tokenizers are left alone."""
    joins, keeps = undivided([("a", "_"), *MERGES]), undivided()
    assert joins.encode("a b").tokens == ["a_", "b"]
    assert keeps.encode("a b").tokens == ["a", "_b"]
    assert proof.unproven(settings(joins)) == "BPE with the token 'a_'"
    assert proof.unproven(settings(keeps)) == ""
    assert keeps.encode("a   b").tokens == ["a", "__", "_b"]


@pytest.mark.parametrize(
    "option", ["ignore_merges", "continuing_subword_prefix", "end_of_word_suffix"]
)
def test_options_that_look_at_whole_texts_are_no_part_of_the_proof(option: str) -> None:
    config = settings(undivided())
    config["model"][option] = True if option == "ignore_merges" else "x"
    assert proof.unproven(config) == f"BPE of undivided texts with {option}"


def test_a_normaliser_that_makes_spaces_is_no_part_of_the_proof() -> None:
    tokenizer = undivided()
    tokenizer.normalizer = normalizers.Sequence([normalizers.BertNormalizer(), SPACES_MARKED])
    assert tokenizer.normalizer.normalize_str("字 b") == "_字__b"
    assert proof.unproven(settings(tokenizer)) == "normalizer BertNormalizer"
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), SPACES_MARKED])
    assert proof.unproven(settings(tokenizer)) == ""


def test_only_byte_pairs_are_joined_on_either_side_of_a_cut_alone() -> None:
    unigram = Tokenizer(models.Unigram([("<unk>", 0.0), ("_", -1.0), ("a", -1.0)], unk_id=0))
    unigram.pre_tokenizer = pre_tokenizers.Metaspace("_", split=False)
    assert proof.unproven(settings(unigram)) == "Unigram of undivided texts"


def test_unknown_characters_are_joined_so_the_mark_must_be_known() -> None:
    tokenizer = undivided(unk_token="a", fuse_unk=True)
    config = settings(tokenizer)
    assert [tokenizer.encode(text).tokens for text in ("xy", "x y")] == [["a"], ["a", "_", "a"]]
    assert proof.unproven(config) == ""
    config["model"]["vocab"].pop("_")
    assert proof.unproven(config) == "BPE of undivided texts without '_'"


def test_an_unknown_character_that_is_left_out_brings_marks_together() -> None:
    tokenizer = undivided(unk_token=None)
    parts = [tokenizer.encode(text).tokens for text in ("a x", " ")]
    assert parts == [["a", "_"], ["_"]]
    assert tokenizer.encode("a x ").tokens == ["a", "__"]
    doubt = "BPE of undivided texts that leaves out unknown characters"
    config = settings(tokenizer)
    assert proof.unproven(config) == doubt
    config["model"]["byte_fallback"] = True
    assert proof.unproven(config) == doubt
    config["model"]["vocab"] |= {f"<0x{byte:02X}>": 6 + byte for byte in range(256)}
    assert proof.unproven(config) == ""


def test_the_mark_itself_is_no_end_of_a_word() -> None:
    boundaries = proof.boundaries_of(settings(undivided()))
    assert not boundaries.between("_", " ")
    assert boundaries.between("a", " ")
    assert not boundaries.between("a", ".")


@pytest.mark.parametrize(("content", "proven"), [("a_b", False), ("a_", False), ("_b", True)])
def test_added_tokens_may_be_looked_for_where_marks_stand_for_spaces(
    content: str, proven: bool
) -> None:
    tokenizer = undivided()
    tokenizer.add_tokens([content])
    doubt = "" if proven else f"added token {content!r}: it contains a boundary"
    assert proof.unproven(settings(tokenizer)) == doubt
