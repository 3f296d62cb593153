"""Decides for which tokenizers that do not divide texts a text may be cut, and proves it.

These are SentencePiece's with byte-pair encoding (Llama 2, Mistral, Gemma). A mark takes the place
of every space, and the model sees the whole text. A text is cut before a space that follows another
character, which is neither white space nor the mark itself.

Proof: no merge makes a token in which the mark follows another character, so no merge joins the
characters around the cut. A merge changes nothing but the two tokens that it joins, and merges are
chosen by rank, then by place. So the merges on either side are the same as without the other side.
Before them, every character becomes a token by itself. Unknown ones next to each other become one,
but the mark is known. The second part begins with the mark, so no other one is put before it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]


def normalizers_of(config: Config) -> list[Config]:
    """Return the normalisers of a tokenizer, in order."""
    return _stages(config.get("normalizer"))


def _stages(normalizer: Config | None) -> list[Config]:
    if normalizer is None:
        return []
    if normalizer["type"] != "Sequence":
        return [normalizer]
    return [stage for each in normalizer["normalizers"] for stage in _stages(each)]


def is_mark(normalizer: Config) -> bool:
    """Whether a normaliser puts one character in place of every space."""
    return (
        normalizer["type"] == "Replace"
        and normalizer["pattern"] == {"String": " "}
        and len(normalizer["content"]) == 1
    )


def space_mark(config: Config) -> str:
    """Return what stands for a space where a whole text is one pre-token; else an empty string."""
    pre_tokenizer = config.get("pre_tokenizer")
    if pre_tokenizer and pre_tokenizer["type"] == "Metaspace":
        return "" if pre_tokenizer.get("split", True) else str(pre_tokenizer["replacement"])
    marks = [each["content"] for each in normalizers_of(config) if is_mark(each)]
    # Where no space is left, nothing is split at spaces.
    divided = pre_tokenizer and pre_tokenizer.get("pattern") != {"String": " "}
    return "" if divided or not marks else str(marks[0])


def doubt_of_merges(model: Config, mark: str) -> str:
    """Return why the proof does not hold for a model; empty if it does.

    Args:
        model: as in ``tokenizer.json``.
        mark: stands for spaces.
    """
    if model["type"] != "BPE":
        return f"{model['type']} of undivided texts"
    for option in ("ignore_merges", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(option):
            return f"BPE of undivided texts with {option}"
    if mark not in model["vocab"]:
        return f"BPE of undivided texts without {mark!r}"
    inside = re.compile(f"[^{re.escape(mark)}]{re.escape(mark)}")
    joined = ("".join(merge) for merge in model["merges"])
    across = next((token for token in joined if inside.search(token)), None)
    return "" if across is None else f"BPE with the token {across!r}"
