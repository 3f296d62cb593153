"""What encodes texts, and the form in which token ids leave it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Protocol

import numpy as np

from sglang_prefill_ext.wire.arrays import FlatRows


class Encoder(Protocol):
    """A library with one tokenizer loaded, called from several threads."""

    @property
    def name(self) -> str:
        """The library, as `--prefill-only-tokenizer` names it."""
        ...

    def rows(self, texts: Sequence[str]) -> FlatRows:
        """Encode texts without the special tokens around them, one row a text.

        Raises:
            Exception: whatever the library raises of a text that it cannot read.
        """
        ...

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Return the texts of ids, special tokens included."""
        ...


def flat(ids: Sequence[Sequence[int]]) -> FlatRows:
    """Put rows of ids behind one another."""
    counts = np.fromiter(map(len, ids), dtype=np.int32, count=len(ids))
    total = int(counts.sum(dtype=np.int64))
    return FlatRows(np.fromiter(chain.from_iterable(ids), dtype=np.int32, count=total), counts)
