"""The engine's tokenizer by Hugging Face's library alone: the same rules, from the same JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenizers import Tokenizer

from sglang_prefill_ext.texts.encoder import flat
from sglang_prefill_ext.wire.arrays import FlatRows

PROBES = ("", " ", "Hello, World!", "naïve café", "漢字 かな", "a  b\n\tc", "🙂 <s> </s> 1234567")
"""Texts by which a copy of a tokenizer is compared with the original."""


class TokenizerCopy:
    """A copy of the engine's tokenizer, as it is called there: nothing is cut or filled up.

    Args:
        json: of the engine's fast tokenizer.
    """

    name = "huggingface"

    def __init__(self, json: str) -> None:
        self._tokenizer = Tokenizer.from_str(json)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(
        self, texts: Sequence[str | tuple[str, str]], *, continued: bool = False
    ) -> list[list[int]]:
        """Encode texts, or pairs of texts; see `SchedulerLink`."""
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=not continued)
        return [encoding.ids for encoding in encoded]

    def rows(self, texts: Sequence[str]) -> FlatRows:
        """Encode texts without special tokens; see `Encoder`."""
        return flat(self.encode(texts, continued=True))

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Return the texts of ids, special tokens included."""
        texts: list[str] = self._tokenizer.decode_batch(list(rows), skip_special_tokens=False)
        return texts

    def agrees_on(self, probes: Mapping[str, list[int]]) -> bool:
        """Whether the copy makes the same ids of texts as the original did."""
        return self.encode(list(probes)) == list(probes.values())


def faithful_copy(json: str, probes: Mapping[str, list[int]]) -> TokenizerCopy | None:
    """Return a copy that agrees with the original; None if there is none.

    Args:
        json: empty where the engine has no fast tokenizer.
    """
    if not json:
        return None
    copy = TokenizerCopy(json)
    return copy if copy.agrees_on(probes) else None
