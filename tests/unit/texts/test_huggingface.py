from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from sglang_prefill_ext.texts import sample_texts
from sglang_prefill_ext.texts.libraries import TokenizerCopy, faithful_copy
from tests.unit.attach.engines import word_tokenizer
from tests.unit.texts.made import SPECIALS, json_of


def special() -> Tokenizer:
    tokenizer = word_tokenizer()
    tokenizer.post_processor = TemplateProcessing("c $A", "c $A b $B", [("c", 3), ("b", 2)])
    return tokenizer


def test_a_copy_adds_special_tokens_and_joins_pairs_like_the_original() -> None:
    copy = TokenizerCopy(special().to_str())
    assert copy.encode(["a b", "", "x"]) == [[3, 1, 2], [3], [3, 0]]
    assert copy.encode([("a", "b")]) == [[3, 1, 2, 2]]


def test_what_the_original_cuts_off_or_fills_up_the_copy_does_not() -> None:
    original = word_tokenizer()
    original.enable_truncation(2)
    original.enable_padding(length=9)
    assert TokenizerCopy(original.to_str()).encode(["a b c a"]) == [[1, 2, 3, 1]]


def test_a_copy_is_used_only_if_it_agrees_with_the_original() -> None:
    json = special().to_str()
    agreeing = faithful_copy(json, {"a": [3, 1], "": [3]})
    assert agreeing is not None
    assert agreeing.encode(["b"]) == [[3, 2]]
    assert faithful_copy(json, {"a": [3, 1], "b": [2]}) is None
    assert faithful_copy("", {}) is None


def test_threads_share_a_copy() -> None:
    copy = TokenizerCopy(json_of("llama3"))
    parts = [sample_texts.texts(400, SPECIALS, seed=seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(copy.encode, parts))
    assert found == [TokenizerCopy(json_of("llama3")).encode(part) for part in parts]
