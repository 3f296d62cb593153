"""Small tokenizers of every known kind, trained by the tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Literal, TypeAlias

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from sglang_prefill_ext.modelmaker import corpus
from sglang_prefill_ext.texts import sample_texts

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN_3_5 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
DEEPSEEK = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
    "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)
"""As published, with line ends themselves in classes."""
PrependScheme: TypeAlias = Literal["always", "first", "never"]
SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
VOCABULARY = 1500


def settings(tokenizer: Tokenizer) -> dict[str, Any]:
    """The tokenizer as in ``tokenizer.json``."""
    made: dict[str, Any] = json.loads(tokenizer.to_str())
    return made


def _splits(*patterns: str) -> Any:
    splits = [pre_tokenizers.Split(Regex(each), "isolated") for each in patterns]
    return pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def byte_level(pre_tokenizer: Any, normalizer: Any = None, post: Any = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    return _trained(tokenizer, trainer, post)


def _trained(tokenizer: Tokenizer, trainer: Any, post: Any) -> Tokenizer:
    lines = [line for line, _ in zip(corpus.lines(), range(1500), strict=False)]
    tokenizer.train_from_iterator([*lines, *sample_texts.texts(400, [])], trainer)
    if post is not None:
        tokenizer.post_processor = post
    return tokenizer


def _gpt2() -> Tokenizer:
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))


def _llama3() -> Tokenizer:
    template = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 0)])
    post = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return byte_level(_splits(LLAMA_3), post=post)


def _qwen() -> Tokenizer:
    return byte_level(_splits(QWEN), normalizers.NFC())


def _qwen_3_5() -> Tokenizer:
    return byte_level(_splits(QWEN_3_5), normalizers.NFC())


def _o200k() -> Tokenizer:
    made = byte_level(_splits(O200K))
    made.add_special_tokens([AddedToken("<|end|>", rstrip=True, lstrip=True)])
    made.add_tokens([AddedToken("  ", normalized=True), AddedToken("        ", normalized=True)])
    return made


def _deepseek() -> Tokenizer:
    made = byte_level(_splits(*DEEPSEEK), normalizers.Sequence([]))
    made.add_tokens([AddedToken("<dsml:", normalized=False), AddedToken("</dsml:")])
    return made


def _falcon() -> Tokenizer:
    stages = [
        pre_tokenizers.Punctuation("contiguous"),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        pre_tokenizers.Digits(),
        pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
    ]
    return byte_level(pre_tokenizers.Sequence(stages))


def _word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    marks = ["[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=VOCABULARY, special_tokens=marks, show_progress=False
    )
    return _trained(tokenizer, trainer, processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1)))


def _unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=VOCABULARY, special_tokens=["<unk>", "</s>"], unk_token="<unk>"
    )
    post = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", 1)])
    return _trained(tokenizer, trainer, post)


def _sentence_piece(prepend: PrependScheme, *, byte_fallback: bool = True) -> Tokenizer:
    """Llama 2's and Mistral's: words do not divide a text, and bytes stand for unknown characters.

    Trained on words, as SentencePiece does.
    """
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend)
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        limit_alphabet=300,
        show_progress=False,
    )
    template = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)])
    config = settings(_trained(tokenizer, trainer, template))
    config["model"] |= {"byte_fallback": byte_fallback, "fuse_unk": True}
    config["pre_tokenizer"]["split"] = False
    config["added_tokens"] = [each for each in config["added_tokens"] if each["id"] < 2]
    return Tokenizer.from_str(json.dumps(config))


def _llama2() -> Tokenizer:
    made = _sentence_piece("always")
    made.add_tokens(["\u2581<PRE>", AddedToken("<mask>", lstrip=True)])
    return made


def _gemma() -> Tokenizer:
    """Without bytes for unknown characters, so that unknown ones next to each other become one."""
    made = _sentence_piece("never", byte_fallback=False)
    made.normalizer = normalizers.Replace(" ", "\u2581")
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    made.add_tokens([AddedToken("\u2581\u2581"), AddedToken("\n\n", normalized=False)])
    return made


def _whitespace() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=VOCABULARY, special_tokens=["[UNK]"], show_progress=False
    )
    return _trained(tokenizer, trainer, None)


_KINDS: dict[str, Callable[[], Tokenizer]] = {
    "gpt2": _gpt2,
    "llama3": _llama3,
    "qwen": _qwen,
    "qwen3.5": _qwen_3_5,
    "o200k": _o200k,
    "deepseek": _deepseek,
    "falcon": _falcon,
    "wordpiece": _word_piece,
    "unigram": _unigram,
    "llama2": _llama2,
    "mistral": partial(_sentence_piece, "first"),
    "gemma": _gemma,
    "whitespace": _whitespace,
}
PROVEN = list(_KINDS)
"""Kinds of tokenizers whose texts may be cut."""


@cache
def json_of(kind: str) -> str:
    """The ``tokenizer.json`` of a tokenizer of this kind."""
    return _KINDS[kind]().to_str()
