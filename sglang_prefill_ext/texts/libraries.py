"""Libraries that encode faster than Hugging Face's; both are optional."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np

from sglang_prefill_ext.config import TokenizerChoice, flag_name
from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.texts.encoder import Encoder, flat
from sglang_prefill_ext.wire.arrays import FlatRows

LIBRARIES = (TokenizerChoice.FASTOKENS, TokenizerChoice.GIGATOKEN)

_BOUNDED = (TokenizerChoice.FASTOKENS,)
"""Those whose memory has a bound. gigatoken 0.10.0 remembers every word that it has met, for ever,
so a server that anybody may send texts to uses it only where its operator says so."""


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
    return [each for each in LIBRARIES if each in wanted and find_spec(each) is not None]


def require_installed(choice: TokenizerChoice) -> None:
    """Refuse a library by name that is not there.

    Raises:
        ConfigError: it is not installed.
    """
    if choice in LIBRARIES and not candidates(choice):
        raise ConfigError(
            f"{flag_name('tokenizer')} {choice} needs a library that is not installed. "
            f"Install sglang-prefill-ext[{choice}], or leave the flag out for "
            f"{TokenizerChoice.AUTO}."
        )
