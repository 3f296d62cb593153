from __future__ import annotations

import unicodedata
from itertools import product
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from sglang_prefill_ext.texts import proof
from sglang_prefill_ext.texts.splice import MARKS, Boundaries
from tests.unit.texts.made import DEEPSEEK, LLAMA_3, O200K, PROVEN, json_of, settings

# One character of every class that the patterns know, and those that they name.
_ALPHABET = " \t\n\raZé1字か゠\u0301'st.:!。/$_\u00a0\u200b"

MARK = "\u037e"
"""A Greek question mark, of which Unicode's normal forms make a semicolon."""

SMALL, CAPITAL = (rf"{each}|\s+" for each in proof.alternatives(O200K)[:2])
"""The two patterns of words in O200K, each without the other."""

MAPPED_FIRST = pre_tokenizers.Sequence(
    [
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        pre_tokenizers.Split(Regex(LLAMA_3), "isolated"),
    ]
)


def of(pre_tokenizer: Any, **parts: Any) -> dict[str, Any]:
    tokenizer = Tokenizer(models.BPE())
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    if "normalizer" in parts:
        tokenizer.normalizer = parts["normalizer"]
    tokenizer.add_tokens(parts.get("added", []))
    return settings(tokenizer)


@pytest.mark.parametrize("kind", PROVEN)
def test_these_tokenizers_are_proven(kind: str) -> None:
    assert proof.unproven(settings(Tokenizer.from_str(json_of(kind)))) == ""


@pytest.mark.parametrize("length", [2, 3])
def test_no_alternative_matches_across_a_boundary(length: int) -> None:
    """By the real regex engine: all strings over an alphabet with a character of every class."""
    boundaries = Boundaries()
    strings = list(map("".join, product(_ALPHABET, repeat=length)))
    across = [each for each in strings if boundaries.inside(each)]
    within = [each for each in strings if not boundaries.inside(each)]
    assert len(across) > len(_ALPHABET)
    for alternative in proof._WORDS | proof._OTHERS:
        whole = normalizers.Replace(Regex(rf"\A(?:{alternative})\z"), "\x01")
        assert [each for each in across if whole.normalize_str(each) == "\x01"] == []
        if length == 2 and alternative not in ("'s", "'t", r"\p{N}", r"\s*[\r\n]"):
            assert any(
                whole.normalize_str(each) == "\x01"
                for each in [*within, *_ALPHABET, "'re", "'ve", "'ll", "'m", "'d", "123"]
            )


def test_alternatives_look_behind_nothing_and_ahead_only_behind_a_space() -> None:
    for alternative in proof._WORDS | proof._OTHERS:
        assert "(?<" not in alternative
        assert r"\b" not in alternative
        if "(?!" in alternative or "(?=" in alternative:
            assert alternative == r"\s+(?!\S)"


@pytest.fixture(scope="module")
def characters() -> tuple[list[str], list[str]]:
    """All characters, and the normal form of each alone."""
    points = (point for point in range(0x110000) if not 0xD800 <= point <= 0xDFFF)
    chars = list(map(chr, points))
    return chars, [unicodedata.normalize("NFC", char) for char in chars]


@pytest.mark.parametrize("mark", [*MARKS, " "])
def test_unicode_normalisation_joins_a_boundary_with_nothing(
    mark: str, characters: tuple[list[str], list[str]]
) -> None:
    """No character absorbs a mark that follows it, and no following character changes it.

    Nothing composes across a mark, so one text with marks between all characters tells.
    """
    chars, alone = characters
    between = unicodedata.normalize("NFC", mark + mark.join(chars) + mark)
    assert between == mark + mark.join(alone) + mark


@pytest.mark.parametrize(
    ("config", "doubt"),
    [
        (of(None), "no pre-tokenizer"),
        (of(pre_tokenizers.ByteLevel(add_prefix_space=True)), "ByteLevel with add_prefix_space"),
        (
            of(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)),
            "no pre-tokenizer that parts all words",
        ),
        (of(pre_tokenizers.Split(Regex(r"\w+ \w+"), "isolated")), r"Split by \w+ \w+"),
        (of(pre_tokenizers.Split(" ", "isolated")), "Split by a fixed string"),
        (
            of(pre_tokenizers.Split(Regex(LLAMA_3), "merged_with_next")),
            "Split with behavior MergedWithNext",
        ),
        *(
            (of(pre_tokenizers.Split(Regex(each), "isolated")), "no pre-tokenizer that parts all")
            for each in (r"\p{N}", r"\s+", r" ?\p{L}+", SMALL, CAPITAL)
        ),
        (of(MAPPED_FIRST), "no pre-tokenizer that parts all words"),
        (of(pre_tokenizers.Metaspace(split=False)), "BPE of undivided texts without '\u2581'"),
        (
            of(pre_tokenizers.Metaspace(split=False), normalizer=normalizers.Replace(" ", "_")),
            "normalizer Replace",
        ),
        (
            of(pre_tokenizers.Whitespace(), normalizer=normalizers.Replace(" ", "_")),
            "normalizer Replace",
        ),
        (of(pre_tokenizers.CharDelimiterSplit("x")), "pre-tokenizer CharDelimiterSplit"),
        (
            of(pre_tokenizers.Sequence([pre_tokenizers.Punctuation("merged_with_next")])),
            "pre-tokenizer Punctuation",
        ),
        (of(pre_tokenizers.Whitespace(), normalizer=normalizers.NFKC()), "normalizer NFKC"),
        (
            of(pre_tokenizers.Whitespace(), added=["two words"]),
            "added token 'two words': it contains a boundary",
        ),
        (
            of(pre_tokenizers.Whitespace(), added=[AddedToken("word", single_word=True)]),
            "added token 'word': it depends on its neighbours",
        ),
        (
            of(
                pre_tokenizers.BertPreTokenizer(),
                normalizer=normalizers.BertNormalizer(),
                added=["word"],
            ),
            "added token 'word': it is looked for in normalised text",
        ),
        (
            of(pre_tokenizers.ByteLevel(), normalizer=normalizers.BertNormalizer()),
            "normalizer BertNormalizer",
        ),
        (
            of(
                pre_tokenizers.Whitespace(),
                normalizer=normalizers.NFC(),
                added=[AddedToken("café", rstrip=True)],
            ),
            "added token 'café': it is looked for in normalised text",
        ),
    ],
)
def test_a_component_without_a_proof_is_named(config: dict[str, Any], doubt: str) -> None:
    assert proof.unproven(config).startswith(doubt)


def pieces(pre_tokenizer: Any, text: str) -> list[str]:
    return [piece for piece, _ in pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize(("pattern", "split", "together"), [(SMALL, "a", "A"), (CAPITAL, "A", "a")])
def test_a_pattern_of_some_words_leaves_others_with_what_follows(
    pattern: str, split: str, together: str
) -> None:
    words = pre_tokenizers.Split(Regex(pattern), "isolated")
    assert pieces(words, split + ".") == [split, "."]
    assert pieces(words, together + ".") == [together + "."]


def test_a_pattern_behind_the_mapping_of_bytes_sees_no_spaces() -> None:
    assert pieces(MAPPED_FIRST, "one two") == ["one\u0120two"]


def test_of_two_marks_one_is_put_before_the_other() -> None:
    metaspace = pre_tokenizers.Metaspace(split=False)
    assert pieces(metaspace, "a_b") == ["\u2581a_b"]
    assert pieces(metaspace, "a") + pieces(metaspace, "_b") == ["\u2581a", "\u2581_b"]


def test_dropout_is_no_function_of_the_text() -> None:
    config = of(pre_tokenizers.Whitespace())
    config["model"]["dropout"] = 0.1
    assert proof.unproven(config) == "BPE with dropout"


def test_boundaries_are_the_tokenizers_own() -> None:
    assert proof.boundaries_of(of(pre_tokenizers.Metaspace())).marks == ""
    assert proof.boundaries_of(of(pre_tokenizers.WhitespaceSplit())).marks == ""
    greedy = of(pre_tokenizers.Whitespace(), added=["word", AddedToken("<end>", rstrip=True)])
    assert proof.boundaries_of(greedy) == Boundaries(MARKS, frozenset(">"))
    assert proof.unproven(greedy) == ""


def test_no_text_is_cut_before_a_mark_that_an_added_token_contains() -> None:
    added = ["<dsml:", ".a.b", "it" + MARK, "wait..."]
    config = of(pre_tokenizers.Whitespace(), normalizer=normalizers.NFC(), added=added)
    assert proof.boundaries_of(config).marks == "\n,!?。，：；！？"
    assert proof.unproven(config) == ""


def test_an_added_token_is_found_by_its_normal_form() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens(["it" + MARK])
    assert tokenizer.encode("bit;").tokens == ["it;"]
    added = of(pre_tokenizers.Whitespace(), normalizer=normalizers.NFC(), added=["word"])
    assert proof.unproven(added) == ""


def test_an_added_token_takes_the_spaces_after_a_text_that_becomes_its_own() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken("café", rstrip=True)])
    assert tokenizer.encode("cafe\u0301 ").offsets == [(0, len("cafe\u0301 "))]


def test_patterns_fall_into_their_alternatives() -> None:
    assert proof.alternatives(r"(?i:'s|'t)|[a|\]|]+|\||b") == [
        *(r"(?i:'s|'t)", r"[a|\]|]+", r"\|", "b")
    ]
    known = proof._WORDS | proof._OTHERS
    for pattern in (LLAMA_3, O200K, *DEEPSEEK):
        assert set(proof._alternatives_of({"pattern": {"Regex": pattern}})) <= known
