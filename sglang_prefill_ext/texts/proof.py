"""Decides for which tokenizers a text may be cut at a boundary, and proves it.

Every stage of the tokenizer must give the same result for the two parts as for the whole text. A
component that is not named here is assumed to look across boundaries.

Added tokens: none can lie across the cut. A token with ``lstrip`` takes the white space to its
left, but stops at the character before the cut, which is no white space. After the last character
of a token with ``rstrip`` no text is cut.

Normaliser: the cut is a Unicode normalisation boundary, and NFC makes no white space from anything
else. BERT's works character by character.

Pre-tokenizer: patterns match from left to right, each match where the last one ended. No known
alternative matches a string with a boundary inside, and none looks behind. Only ``\\s+(?!\\S)``
looks ahead, and only after white space, which the character before the cut is not. If the first
pattern of a sequence does not split at the cut, a later one does, which matches words and spaces.
It must come before ByteLevel's mapping, after which spaces are letters to a pattern. Digits and
punctuation are told from the others character by character.
Pre-tokenizers that split at white space separate any two characters around it. For Metaspace only
spaces are boundaries: it begins a pre-token at each, and the second part begins with a space.

After these stages the model sees one pre-token at a time; if that is the whole text, `undivided`
has the proof. `frame` knows what a post-processor adds around a single text. Tests try all short
strings over an alphabet of every class, and every character of Unicode.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from itertools import chain

from sglang_prefill_ext.texts.settings import Settings, is_mark, normalizers_of, space_mark
from sglang_prefill_ext.texts.splice import MARKS, Boundaries
from sglang_prefill_ext.texts.undivided import doubt_of_merges

_CASED = tuple(
    frozenset(
        rf"[^\r\n\p{{L}}\p{{N}}]?{letters}{contraction}"
        for contraction in ("", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?")
    )
    for letters in (
        r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
        r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    )
)
"""Alternatives that match no capital letter alone, and those that match no small letter alone."""

_WORDS = frozenset(
    {
        r" ?\p{L}+",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"[^\r\n\p{L}\p{N}]?+\p{L}+",
        r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
        r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
        *chain(*_CASED),
    }
)
"""Alternatives that match words, whatever their letters (GPT-2, Llama 3, Qwen, o200k, DeepSeek)."""

_OTHERS = frozenset(
    {
        *("'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "(?i:'s|'t|'re|'ve|'m|'ll|'d)"),
        *("'(?:[sdmt]|ll|ve|re)", "'(?i:[sdmt]|ll|ve|re)"),
        *(r" ?\p{N}+", r"\p{N}+", r"\p{N}", r"\p{N}{1,3}", r"\p{N}{1,2}", "[0-9][0-9][0-9]"),
        r" ?[^\s\p{L}\p{N}]+",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r" ?[^\s\p{L}\p{N}]++[\r\n]*",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
        r" ?[\p{P}\p{S}]+[\r\n]*",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""",
        "[一-龥\u3040-ゟ゠-ヿ]+",
        *(r"\s*[\r\n]+", r"\s*[\r\n]", r"\s+(?!\S)", r"\s+"),
    }
)
"""Alternatives that match everything else.

None of them, nor of `_WORDS`, matches a string in which a space follows something that is none, or
a mark follows a letter; none looks behind; and the one that looks ahead does so behind a space.
"""

_WHITESPACE_SPLITTERS = {"BertPreTokenizer": MARKS, "Whitespace": MARKS, "WhitespaceSplit": ""}


def unproven(settings: Settings) -> str:
    """Return the component of a tokenizer for which there is no proof; empty if there is none.

    Args:
        settings: of the tokenizer, as in ``tokenizer.json``.
    """
    if settings["model"].get("dropout"):  # the ids of a text are random then
        return "BPE with dropout"
    mark = space_mark(settings)
    # BERT's puts spaces around some characters, which may be joined with what follows unless all
    # spaces are dropped.
    known = {"NFC", "BertNormalizer"} if _drops_spaces(settings) else {"NFC"}
    for normalizer in normalizers_of(settings):
        puts_mark = is_mark(normalizer) and normalizer["content"] == mark
        if normalizer["type"] not in known and not puts_mark:
            return f"normalizer {normalizer['type']}"
    if mark:
        doubt = doubt_of_merges(settings["model"], mark)
    else:
        doubt = _doubt_of_pre_tokenizer(settings.get("pre_tokenizer"))
    return doubt or _doubt_of_added_tokens(settings, mark)


def boundaries_of(settings: Settings) -> Boundaries:
    """Return where texts may be cut for a tokenizer that is not `unproven`."""
    kind, mark = _pre_tokenizer(settings), space_mark(settings)
    marks = "" if mark or kind == "Metaspace" else _WHITESPACE_SPLITTERS.get(kind, MARKS)
    added = settings.get("added_tokens", ())
    taken = set().union(*(Boundaries(marks).inside(_normal_form(token)) for token in added))
    free = (each for each in marks if each not in taken)
    ends = (token["content"][-1:] for token in added if token["rstrip"])
    return Boundaries("".join(free), frozenset([*mark, *ends]))


def _pre_tokenizer(settings: Settings) -> str:
    """The type of the pre-tokenizer; empty if there is none."""
    return str((settings.get("pre_tokenizer") or {}).get("type", ""))


def _drops_spaces(settings: Settings) -> bool:
    """Whether no space becomes a part of a token."""
    return _pre_tokenizer(settings) in _WHITESPACE_SPLITTERS and not space_mark(settings)


def _normal_form(token: Settings) -> str:
    return unicodedata.normalize("NFC", token["content"])


def alternatives(pattern: str) -> list[str]:
    """Divide a regular expression at those ``|`` that lie in no group and no class."""
    parts, depth, in_class, skip = [""], 0, False, False
    for char in pattern:
        if skip or char == "\\":
            skip = not skip
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and not depth:
            parts.append("")
            continue
        parts[-1] += char
    return parts


def _doubt_of_pre_tokenizer(pre_tokenizer: Settings | None) -> str:
    if pre_tokenizer is None:
        return "no pre-tokenizer"
    kind = pre_tokenizer["type"]
    if kind in _WHITESPACE_SPLITTERS or kind == "Metaspace":
        return ""
    stages = pre_tokenizer["pretokenizers"] if kind == "Sequence" else [pre_tokenizer]
    doubts = [doubt for stage in stages if (doubt := _doubt_of_stage(stage))]
    if doubts:
        return doubts[0]
    # One stage may not split at a boundary, but then a later one must.
    return "" if _part_all(stages) else "no pre-tokenizer that parts all words"


def _doubt_of_stage(stage: Settings) -> str:
    match stage["type"]:
        case "ByteLevel":
            return "ByteLevel with add_prefix_space" if stage["add_prefix_space"] else ""
        case "Digits":
            return ""
        case "Punctuation" if stage["behavior"] in ("Contiguous", "Isolated"):
            return ""
        case "Split":
            return _doubt_of_split(stage)
    return f"pre-tokenizer {stage['type']}"


def _doubt_of_split(split: Settings) -> str:
    if (split["behavior"], split["invert"]) not in (("Isolated", False), ("Removed", True)):
        return f"Split with behavior {split['behavior']}"
    unknown = [each for each in _alternatives_of(split) if each not in _WORDS | _OTHERS]
    return f"Split by {unknown[0]}" if unknown else ""


def _part_all(stages: Sequence[Settings]) -> bool:
    for stage in stages:
        if stage["type"] == "ByteLevel":  # later stages see other characters than the text's
            return bool(stage["use_regex"])  # the pattern of GPT-2
        known = set(_alternatives_of(stage)) if stage["type"] == "Split" else set()
        if r"\s+" in known and all(known & (_WORDS - cased) for cased in _CASED):
            return True
    return False


def _alternatives_of(split: Settings) -> list[str]:
    pattern = split["pattern"]
    if "Regex" not in pattern:
        return ["a fixed string"]
    # Some patterns have these characters themselves in their classes.
    return alternatives(pattern["Regex"].replace("\r", r"\r").replace("\n", r"\n"))


def _doubt_of_added_tokens(settings: Settings, mark: str) -> str:
    # `boundaries_of` takes care of tokens with rstrip.
    boundaries = boundaries_of(settings)
    normalizers = {each["type"] for each in normalizers_of(settings)}
    for token in settings.get("added_tokens", ()):
        for doubt in _doubts_of_token(token, boundaries, normalizers, mark):
            return f"added token {token['content']!r}: {doubt}"
    return ""


def _doubts_of_token(
    token: Settings, boundaries: Boundaries, normalizers: set[str], mark: str
) -> Iterator[str]:
    content = _normal_form(token)
    if boundaries.inside(content.replace(mark, " ") if mark else content):
        yield "it contains a boundary"
    if token["single_word"]:
        yield "it depends on its neighbours"
    # Other characters than its own may become the last one, after which no text may be cut.
    greedy = normalizers and token["rstrip"]
    if token["normalized"] and (greedy or "BertNormalizer" in normalizers):
        yield "it is looked for in normalised text"
