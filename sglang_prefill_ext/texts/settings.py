"""Reads the settings of a fast tokenizer, which are a small part of its ``tokenizer.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

Settings: TypeAlias = Mapping[str, Any]
"""A component of a tokenizer, or all of them, as in ``tokenizer.json``."""

_LARGE = ("vocab", "merges")

_PARTS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def settings_of(json: str) -> Settings:
    """Return the components of a tokenizer.

    Vocabulary and merges have many MB, which take half a second to read, with the interpreter lock
    held. They are left out unless a mark stands for spaces: `undivided` needs them then.

    Raises:
        msgspec.DecodeError: the text is no JSON.
    """
    parts = _PARTS.decode(json)
    model = _PARTS.decode(parts.pop("model"))
    large = {name: model.pop(name) for name in _LARGE if name in model}
    settings = _decoded(parts)
    settings["model"] = _decoded(model)
    if space_mark(settings):
        settings["model"] |= _decoded(large)
    return settings


def _decoded(parts: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    return {name: msgspec.json.decode(part) for name, part in parts.items()}


_LOOKS_AROUND = ("lstrip", "rstrip", "single_word")


def added_tokens(settings: Settings) -> list[str]:
    """Return the added tokens of a tokenizer; first those that take or need what is around them."""
    tokens = settings.get("added_tokens", ())
    plain_last = sorted(tokens, key=lambda token: not any(token[each] for each in _LOOKS_AROUND))
    return [token["content"] for token in plain_last]


def normalizers_of(settings: Settings) -> list[Settings]:
    """Return the normalisers of a tokenizer, in order."""
    return _stages(settings.get("normalizer"))


def _stages(normalizer: Settings | None) -> list[Settings]:
    if normalizer is None:
        return []
    if normalizer["type"] != "Sequence":
        return [normalizer]
    return [stage for each in normalizer["normalizers"] for stage in _stages(each)]


def is_mark(normalizer: Settings) -> bool:
    """Whether a normaliser puts one character in place of every space."""
    return (
        normalizer["type"] == "Replace"
        and normalizer["pattern"] == {"String": " "}
        and len(normalizer["content"]) == 1
    )


def space_mark(settings: Settings) -> str:
    """Return what stands for a space where a whole text is one pre-token; else an empty string."""
    pre_tokenizer = settings.get("pre_tokenizer")
    if pre_tokenizer and pre_tokenizer["type"] == "Metaspace":
        return "" if pre_tokenizer.get("split", True) else str(pre_tokenizer["replacement"])
    marks = [each["content"] for each in normalizers_of(settings) if is_mark(each)]
    # Where no space is left, nothing is split at spaces.
    divided = pre_tokenizer and pre_tokenizer.get("pattern") != {"String": " "}
    return "" if divided or not marks else str(marks[0])
