"""Sizes of one request. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from sglang_prefill_ext.errors import ConfigError

_SHAPE = re.compile(r"([1-9]\d{0,6})\+(\d{1,7})x([1-9]\d{0,6})")


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of one request; written ``<query>+<item>x<items>``, as in ``60+2x50``.

    Attributes:
        query_tokens: tokens of the query, which every row starts with; at least 1.
        item_tokens: tokens of each item; 0 makes the query itself the prompt.
        items: rows of the request; at least 1.
    """

    query_tokens: int
    item_tokens: int
    items: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``60+2x50``.

        Raises:
            ConfigError: `text` is not of that form.
        """
        match = _SHAPE.fullmatch(text)
        if match is None:
            raise ConfigError(
                f"shape {text!r:.80}: write <query>+<item>x<items>, for example 60+2x50, with at "
                "most seven digits each."
            )
        return cls(*(int(number) for number in match.groups()))

    def __str__(self) -> str:
        return f"{self.query_tokens}+{self.item_tokens}x{self.items}"

    @property
    def row_tokens(self) -> int:
        """Tokens of one row."""
        return self.query_tokens + self.item_tokens

    @property
    def prefix_tokens(self) -> int:
        """Tokens that all rows share; a row keeps at least one token of its own."""
        return min(self.query_tokens, self.row_tokens - 1)

    @property
    def suffix_tokens(self) -> int:
        """Tokens of a row after the shared ones; at least 1."""
        return self.row_tokens - self.prefix_tokens

    @property
    def packed_tokens(self) -> int:
        """Tokens of a packed forward: the shared ones once, and the rest of every row."""
        return self.prefix_tokens + self.items * self.suffix_tokens

    @property
    def packed_pairs(self) -> int:
        """Pairs of a query token and a key that it attends to, in one layer of a packed forward."""
        return self.pairs_within(None)

    def pairs_within(self, window: int | None) -> int:
        """The same for a layer in which a token attends to `window` tokens, itself included."""
        of_prefix = causal_pairs(self.prefix_tokens, window)
        return of_prefix + self.items * (causal_pairs(self.row_tokens, window) - of_prefix)


def causal_pairs(tokens: int, window: int | None = None) -> int:
    """Pairs of query and key, if each of `tokens` attends to itself and to all before it.

    Args:
        window: most keys of one token; None for all.
    """
    first = tokens if window is None else min(tokens, window)
    return first * (first + 1) // 2 + (tokens - first) * first
