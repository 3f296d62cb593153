"""Decides for which tokenizers that do not divide texts a text may be cut, and proves it.

These are SentencePiece's with byte-pair encoding (Llama 2, Mistral, Gemma). A mark takes the place
of every space, and the model sees the whole text. A text is cut before a space that follows another
character, which is neither white space nor the mark itself.

Proof: no merge makes a token in which the mark follows another character, so no merge joins the
characters around the cut. A merge changes nothing but the two tokens that it joins, and merges are
chosen by rank, then by place. So the merges on either side are the same as without the other side.
Before them, every character becomes a token by itself, or one for each of its bytes; none is left
out, which would bring those around it together. Unknown ones next to each other become one, but the
mark is known. The second part begins with the mark, so no other one is put before it.
"""

from __future__ import annotations

import re

from sglang_prefill_ext.texts.settings import Settings

_BYTES = frozenset(f"<0x{byte:02X}>" for byte in range(256))
"""Tokens that stand for the bytes of unknown characters."""


def doubt_of_merges(model: Settings, mark: str) -> str:
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
    falls_back = model.get("byte_fallback") and model["vocab"].keys() >= _BYTES
    if not falls_back and not model.get("unk_token"):
        return "BPE of undivided texts that leaves out unknown characters"
    inside = re.compile(f"[^{re.escape(mark)}]{re.escape(mark)}")
    joined = ("".join(merge) for merge in model["merges"])
    across = next((token for token in joined if inside.search(token)), None)
    return "" if across is None else f"BPE with the token {across!r}"
