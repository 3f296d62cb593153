"""The tokenizer libraries behind one interface: Hugging Face's, and optional faster ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import chain
from typing import Protocol

import numpy as np
from tokenizers import Tokenizer

from sglang_prefill_ext.config import TokenizerChoice
from sglang_prefill_ext.config.knobs import flag_name
from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.wire.arrays import FlatRows, lens_of_rows


class Encoder(Protocol):
    """A library with one tokenizer loaded, called from several threads."""

    @property
    def name(self) -> str:
        """The library, as `--prefill-only-tokenizer` names it."""

    def rows(self, texts: Sequence[str]) -> FlatRows:
        """Encode texts without the special tokens around them, one row a text.

        Raises:
            Exception: whatever the library raises for a text that it cannot read.
        """

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Return the texts of ids, special tokens included."""


def flat(ids: Sequence[Sequence[int]]) -> FlatRows:
    """Put rows of ids into one flat array."""
    counts = lens_of_rows(ids)
    total = int(counts.sum(dtype=np.int64))
    return FlatRows(np.fromiter(chain.from_iterable(ids), dtype=np.int32, count=total), counts)


LIBRARIES = (TokenizerChoice.FASTOKENS, TokenizerChoice.GIGATOKEN)

_BOUNDED = (TokenizerChoice.FASTOKENS,)
"""Libraries whose memory is bounded. gigatoken 0.10.0 caches every word that it has met for ever,
so a server that takes texts from anybody uses it only if its operator asks for it."""


class FastokensEncoder:
    """A tokenizer in `fastokens`.

    Args:
        json: of a fast tokenizer.

    Raises:
        Exception: the library does not know a component of the tokenizer.
    """

    name = "fastokens"

    def __init__(self, json: str) -> None:
        import fastokens

        self._tokenizer = fastokens.Tokenizer.from_json_str(json)
        self._tokenizer.no_truncation()

    def rows(self, texts: Sequence[str]) -> FlatRows:
        """See `Encoder`."""
        ids, offsets = self._tokenizer.encode_batch_flat(list(texts))
        counts = np.diff(np.frombuffer(offsets, dtype="<u8").astype(np.int64))
        return FlatRows(np.frombuffer(ids, dtype="<i4"), counts.astype(np.int32))

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """See `Encoder`."""
        texts: list[str] = self._tokenizer.decode_batch([list(row) for row in rows])
        return texts


class GigatokenEncoder:
    """A tokenizer in `gigatoken`; see `FastokensEncoder`."""

    name = "gigatoken"

    def __init__(self, json: str) -> None:
        import gigatoken

        self._tokenizer = gigatoken.Tokenizer.from_json(json)

    def rows(self, texts: Sequence[str]) -> FlatRows:
        """See `Encoder`."""
        return flat(self._tokenizer.encode_batch_list(list(texts)))

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """See `Encoder`; what is no UTF-8 becomes U+FFFD."""
        return [self._tokenizer.decode(list(row)).decode(errors="replace") for row in rows]


def load(library: TokenizerChoice, json: str) -> Encoder:
    """Load a tokenizer into one of `LIBRARIES`; see `FastokensEncoder`."""
    return FastokensEncoder(json) if library == "fastokens" else GigatokenEncoder(json)


def candidates(choice: TokenizerChoice) -> list[TokenizerChoice]:
    """Return the installed libraries that a choice allows; none for `huggingface`."""
    wanted = _BOUNDED if choice == TokenizerChoice.AUTO else (choice,)
    return [each for each in LIBRARIES if each in wanted and _is_installed(each)]


def _is_installed(library: TokenizerChoice) -> bool:
    """Whether there is a package; a mere directory of its name, which has no origin, is none."""
    found = find_spec(library)
    return found is not None and found.origin is not None


def require_installed(choice: TokenizerChoice) -> None:
    """Refuse a library that was asked for by name and is not installed.

    Raises:
        ConfigError: it is not installed.
    """
    if choice in LIBRARIES and not candidates(choice):
        raise ConfigError(
            f"{flag_name('tokenizer')} {choice} needs a library that is not installed. "
            f"Install sglang-prefill-ext[{choice}], or leave the flag out for "
            f"{TokenizerChoice.AUTO}."
        )


PROBES = ("", " ", "Hello, World!", "naïve café", "漢字 かな", "a  b\n\tc", "🙂 <s> </s> 1234567")
"""Texts by which a copy of a tokenizer is compared with the original."""


class TokenizerCopy:
    """A copy of the engine's tokenizer, without truncation and padding, as the engine uses it.

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


def faithful_copy(json: str, probes: Mapping[str, list[int]]) -> TokenizerCopy | None:
    """Return a copy of the engine's tokenizer; None if it does not agree with the original.

    Args:
        json: empty if the engine has no fast tokenizer; then there is no copy.
        probes: texts, with the ids that the engine makes of them.
    """
    if not json:
        return None
    copy = TokenizerCopy(json)
    return copy if copy.encode(list(probes)) == list(probes.values()) else None
