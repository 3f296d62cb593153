"""Blocks of rows of a grouped matrix product: SGLang's tuned table of them, and padded rows.

The rows of each expert are padded to whole blocks, so with blocks of 128 an expert with 5 rows
costs as much as one with 128.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Entry(NamedTuple):
    """One entry of a tuned table.

    Attributes:
        tokens: the number of tokens for which it was tuned; its key in the table.
        block: its ``BLOCK_SIZE_M``, in rows.
    """

    tokens: int
    block: int


class BlockTable:
    """The entries of a table that SGLang's tuning wrote for one shape on one device.

    Args:
        blocks: tokens -> ``BLOCK_SIZE_M``, in the order of the table; at least one.
    """

    def __init__(self, blocks: Mapping[int, int]) -> None:
        self.entries = tuple(Entry(tokens, block) for tokens, block in blocks.items())
        if not self.entries:
            raise ValueError("a table of blocks needs an entry")

    def candidates(self, tokens: int) -> tuple[Entry, ...]:
        """Return the entries that can be chosen for a number of tokens, one for each block.

        The first is SGLang's own choice, the entry whose tokens are nearest. The others are, for
        each other block, the nearest entry that has it.
        """
        nearest: dict[int, Entry] = {}
        for entry in sorted(self.entries, key=lambda entry: abs(entry.tokens - tokens)):
            nearest.setdefault(entry.block, entry)
        return tuple(nearest.values())

    def reachable(self, least: int, most: int) -> tuple[Entry, ...]:
        """All candidates for any number of tokens from `least` to `most`, ascending by tokens."""
        within = {entry for entry in self.entries if least <= entry.tokens <= most}
        return tuple(sorted({*within, *self.candidates(least), *self.candidates(most)}))


def padded_rows(rows: NDArray[Any], block: int) -> NDArray[np.float64]:
    """Return how many rows are computed, padding included, in blocks of one size.

    Args:
        rows: of each expert, at least 0, whole or expected; ``[..., experts]``.
        block: rows of a block.

    Returns:
        ``[...]``, each at least the sum of `rows`.
    """
    padded: NDArray[np.float64] = np.ceil(rows / block).sum(axis=-1) * block
    return padded
