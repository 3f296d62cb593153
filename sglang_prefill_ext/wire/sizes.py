"""How large one call may be, judged by counts and lengths before anything of that size is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sglang_prefill_ext.config import PrefillOnlyConfig, flag_name
from sglang_prefill_ext.errors import RequestError, TooManyItemsError
from sglang_prefill_ext.wire.flat import FlatRows, wrong
from sglang_prefill_ext.wire.packed import Int32Array

TOKEN_BYTES = 4
"""Of a token in a packed request."""

NUMBER_BYTES = 32
"""Of a number of an answer: an object of Python, in a list."""

MOST_REPEATED_CHARACTERS = 1 << 25
"""Of a text that is repeated for every item. Encoding takes about 30 bytes for each."""


@dataclass(frozen=True, slots=True)
class PromptLengths:
    """Tokens of the prompts of a scoring call.

    Attributes:
        query: which all prompts have.
        count: of items.
        longest_item, all_items: of one item, and of all.
    """

    query: int
    count: int
    longest_item: int
    all_items: int

    @classmethod
    def of(
        cls, query: Sequence[int] | Int32Array, items: Sequence[Sequence[int]] | FlatRows
    ) -> PromptLengths:
        """The lengths of at least one item's prompt."""
        if isinstance(items, FlatRows):
            return cls(len(query), len(items), int(items.counts.max()), len(items.values))
        lens = list(map(len, items))
        return cls(len(query), len(lens), max(lens), sum(lens))

    @property
    def longest_prompt(self) -> int:
        return self.query + self.longest_item

    def packed(self, *, repeats_query: bool) -> int:
        """Tokens of all prompts, with the query once, or once for every item."""
        return (self.count if repeats_query else 1) * self.query + self.all_items


def check_count(
    count: int, config: PrefillOnlyConfig, *, field: str = "items", noun: str = "items"
) -> None:
    """Refuse a call of too many items or prompts.

    Args:
        field: what the user calls them.

    Raises:
        TooManyItemsError: more than `max_items`.
    """
    if count > config.max_items:
        error = TooManyItemsError(
            f"{field}: {count} {noun} exceed the limit of {config.max_items}. "
            f"Split the request, or raise {flag_name('max_items')}."
        )
        error.field = field
        raise error


def check_memory(
    config: PrefillOnlyConfig, *, tokens: int = 0, numbers: int = 0, field: str = "items"
) -> None:
    """Refuse a call that alone takes more memory than all that waits may.

    Args:
        tokens: of the packed request.
        numbers: of the answer.
        field: what the user had better make smaller.

    Raises:
        RequestError: more than `max_queued_mib`.
    """
    needed = tokens * TOKEN_BYTES + numbers * NUMBER_BYTES
    if needed > config.max_queued_mib << 20:
        raise wrong(
            field,
            f"{tokens} tokens and {numbers} numbers of the answer take {needed >> 20} MiB, which "
            f"is more than the limit of {config.max_queued_mib}. Split the request, or raise "
            f"{flag_name('max_queued_mib')}.",
        )


def check_repeated(text: str, items: Sequence[str]) -> None:
    """Refuse a text that would be repeated too often for the items that came with it.

    Raises:
        RequestError: more than `MOST_REPEATED_CHARACTERS`.
    """
    if len(text) * (len(items) - 1) > MOST_REPEATED_CHARACTERS:
        raise wrong(
            "query",
            f"its {len(text)} characters would be repeated for {len(items)} items; "
            f"{MOST_REPEATED_CHARACTERS} in all is the limit. Send fewer items, or token ids.",
        )


def too_long(lengths: PromptLengths, longest: int) -> RequestError:
    """The error for prompts that no model takes, and that would take much memory to refuse."""
    return wrong(
        "query, items",
        f"a prompt has {lengths.longest_prompt} tokens, the model takes {longest} at most. "
        "Send a shorter query or shorter items.",
    )
