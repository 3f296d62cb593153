"""Texts on which tokenizers are likely to differ, the same in every process."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

EDITION = 2
"""Must be raised with every change of the texts: comparisons of other editions are not used."""

_WORDS = (
    "the The THE of and retrieval tokenisation naïve café Zürich señor straße œuvre "
    "fiancée İstanbul ſ ǅ ﬁn ǆ e\u0301 A\u030a \u212b o\u0323\u0302 \u1ed9 n\u0303 "
    "i\u0307 q\u0323\u0307 Ελληνικά Ωμέγα ὀδύσσεια русский Ёлка עִבְרִית العَرَبِيَّة "
    "فارسی हिन्दी क्ष தமிழ் ไทยภาษา ខ្មែរ 漢字 漢 字 日本語 かな カナ ガ か\u3099 ｶﾞ 한국어 "
    "\u1112\u1161\u11ab 각 中文，句子。 你好！ 㐀 𠮷野家 I'm we'll they'VE it's IT'S don't 'tis "
    "l'été rock'n'roll ’s ’t x'd '' ' \" “ ” … — – - _ __ 0 1 7 12 123 1234 12345678901 3.14159 "
    "1,000,000 1e-10 0x1F ½ ² Ⅷ ٣٤٥ १२३ 二〇 2026-11-21 10:30 def return lambda: x=>y i++ "
    "a->b != == === && || :: // /* */ {} [] () <> </div> <br/> #include snake_case "
    "camelCase HTTPServer $var @user #tag %s \\n \\x00 ^_^ ~/.bashrc C:\\\\ "
    "https://a.b/c?d=e&f#g a@b.co 🙂 👍🏽 👨\u200d👩\u200d👧\u200d👦 🏳\ufe0f\u200d🌈 🇩🇪 🇩 "
    "❤\ufe0f 1\ufe0f\u20e3 \u200b \u200d \ufeff \u00ad \u202e � �� ▁ ▁a a▁b Ġ Ġa Ċ ## ##ing [UNK] "
    "<unk> <s> </s> <0x0A> <|endoftext|> <|im_start|>user <|im_end|> [INST] [/INST] [CLS] "
    "[SEP] <mask> <pad>"
).split(" ")
_SPACES = (" ", " ", " ", " ", "  ", "   ", " " * 7, " " * 33, "\t", "\t\t", "\n", "\n\n", "\r\n")
_RARE_SPACES = (
    *(" \n", "\n ", " \t \n ", "\r", "\u00a0", "\u2003", "\u3000", "\u2028", "\u0085", "\x0b"),
)
_MARKS = ". , : ; ! ? 。 ， ： ！ ... ?! ) ( / \x00 \x1f".split(" ")
_BLOCKS = (
    *((0x20, 0x7E), (0x20, 0x17F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0xDFF)),
    *((0xE00, 0x109F), (0x1100, 0x11FF), (0x1E00, 0x20CF), (0x2100, 0x2BFF), (0x3000, 0x30FF)),
    *((0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFFFD), (0x1D400, 0x1D7FF), (0x1F300, 0x1FAFF)),
    *((0x20000, 0x2FA1F), (0xE0000, 0xE01EF), (0, 0xFF)),
)
_LONGEST_WORD = 2_000

_ORDINARY = (
    "a an and are as at be been but by can could did do for from had has have he her his how if in "
    "into is it its just like made make more most my no not of on one only or other our out over "
    "people said see she so some than that the their them then there these they this time to two "
    "up use was water way we were what when which who will with word would year you your answer "
    "Document Query relevant question search system result model 2026 12 (b) e-mail, page. It's"
).split()

UNREADABLE = ("\ud800", "a\udc80b", "\udfff \ud83d")
"""Texts that UTF-8 cannot encode; a library must refuse them if Hugging Face's does."""


def texts(count: int, added: Sequence[str], *, seed: int = 0) -> list[str]:
    """Return `count` different texts: words, code, numbers, spaces, many scripts, long words.

    Args:
        added: the tokenizer's added tokens. Some of the texts contain the first ones, and at most
            half of the texts are such a token alone.
    """
    draw = random.Random(seed)
    alone = added[: count // 2]
    found = dict.fromkeys(["", *alone, *_WORDS, *_SPACES, *_RARE_SPACES, *_MARKS])
    found |= dict.fromkeys(word * (_LONGEST_WORD // len(word)) for word in ("a", "字", "Ab1", "🙂"))
    # A few added tokens are enough for the random texts; each one is a text by itself already.
    own = list(added[:64])
    while len(found) < count:
        found[_text(draw, own)] = None
    return list(found)[:count]


def ordinary_requests() -> Iterator[list[str]]:
    """Yield the texts of scoring requests by which the speed of libraries is measured."""
    draw = random.Random(2)
    for _ in range(24):
        yield [" ".join(draw.choices(_ORDINARY, k=30)) for _ in range(50)]


def splice_cases(added: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield shared texts, each with texts to put before or after it."""
    draw = random.Random(1)
    ends = [*_SPACES, *_RARE_SPACES, *_MARKS, *_WORDS[::7], *added[:16], ""]
    for end in ends:
        shared = _text(draw, list(added[:64])) + draw.choice(_WORDS) + end
        others = [draw.choice(ends) + draw.choice(_WORDS) for _ in range(5)]
        yield shared, ["", *others, draw.choice(ends)]
        yield f"Judge this, naïve 漢字 reader: yes{end}", others


def _text(draw: random.Random, added: Sequence[str]) -> str:
    kind = draw.random()
    if kind < 0.15:
        first, last = draw.choice(_BLOCKS)
        return "".join(map(chr, _readable(draw, first, last)))
    if kind < 0.151:
        return draw.choice(_WORDS) * draw.randint(1, _LONGEST_WORD // 8)
    parts = []
    for _ in range(draw.randint(1, 8)):
        pool = draw.random()
        if pool < 0.05 and added:
            parts.append(draw.choice(added))
        parts.append(draw.choice(_WORDS))
        parts.append(
            draw.choice(_SPACES if pool < 0.75 else _RARE_SPACES if pool < 0.85 else _MARKS)
        )
    return "".join(parts[: -draw.randint(0, 1) or None])


def _readable(draw: random.Random, first: int, last: int) -> list[int]:
    points = [draw.randint(first, last) for _ in range(draw.randint(1, 24))]
    return [point for point in points if not 0xD800 <= point <= 0xDFFF]
