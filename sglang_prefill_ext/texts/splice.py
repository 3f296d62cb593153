"""Encodes prompts that share a text: the shared text once, and the rest of each by itself.

A text is cut at a boundary, where the ids of its two parts together are those of the whole text.
`proof` decides for which tokenizers this holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sglang_prefill_ext.texts.frame import Frame, with_ids
from sglang_prefill_ext.texts.libraries import Encoder
from sglang_prefill_ext.wire.arrays import NO_INTS, FlatRows, Int32Array
from sglang_prefill_ext.wire.checks import check_repeated

MARKS = "\n.,:;!?。，：；！？"
"""Characters that end a word in all patterns and stay the same in all normalisers of `proof`."""

_LETTER = re.compile("[A-Za-z一-龥ぁ-んァ-ヶ가-힣]")
"""Letters in every Unicode version, which no normaliser joins with the character before them."""

_LONGEST_SEARCH = 1024
"""Characters in which a boundary is searched for; a text without one in so many is not cut."""


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Where a text may be cut: before a space that follows something else, or before a mark.

    Attributes:
        marks: characters before which a text may be cut where they follow a letter.
        closing: characters after which a text may not be cut, because an added token that takes
            the spaces after it ends with them.
    """

    marks: str = MARKS
    closing: frozenset[str] = frozenset()

    def between(self, before: str, after: str) -> bool:
        """Whether a text may be cut between two neighbouring characters, whatever is around."""
        if before.isspace() or before in self.closing:
            return False
        return after == " " or (after in self.marks and _LETTER.match(before) is not None)

    def last(self, text: str) -> int:
        """The last place to cut a text whose continuation is unknown; 0 if there is none."""
        ends = range(len(text) - 1, max(0, len(text) - _LONGEST_SEARCH), -1)
        return next((end for end in ends if self.between(text[end - 1], text[end])), 0)

    def first(self, text: str) -> int:
        """The first place to cut a text whose beginning is unknown; its length if there is none."""
        places = range(1, min(len(text), _LONGEST_SEARCH))
        return next((at for at in places if self.between(text[at - 1], text[at])), len(text))

    def inside(self, text: str) -> set[str]:
        """Return the characters before which a text may be cut somewhere in it."""
        return {after for before, after in pairwise(text) if self.between(before, after)}


@dataclass(frozen=True, slots=True, eq=False)
class Spliced:
    """Prompts of one request, as ids.

    Attributes:
        shared: ids with which all prompts begin, or end, int32.
        rest: the other ids of every prompt.
    """

    shared: Int32Array
    rest: FlatRows

    def whole(self, *, item_first: bool, few: int | None = None) -> FlatRows:
        """Return the ids of whole prompts, of the first `few` of them if that is given."""
        rest = self.rest if few is None else self.rest.first(few)
        if item_first:
            return with_ids(rest, NO_INTS, self.shared)
        return with_ids(rest, self.shared, NO_INTS)


@dataclass(frozen=True, slots=True)
class Splice:
    """Cuts prompts at a proven boundary of the shared text.

    Args:
        boundaries: of the tokenizer.
        frame: the special tokens around a prompt.
    """

    boundaries: Boundaries
    frame: Frame

    def encode(
        self, encoder: Encoder, shared: str, items: Sequence[str], *, item_first: bool
    ) -> Spliced | None:
        """Encode ``shared + item``, or ``item + shared``, of every item.

        Returns:
            None where there is nothing to gain: one item, or no boundary in the shared text.

        Raises:
            RequestError: see `check_repeated`.
            Exception: see `Encoder.rows`.
        """
        if len(items) < 2:
            return None
        if item_first:
            return self._item_first(encoder, shared, items)
        cut = self.boundaries.last(shared)
        check_repeated(shared[cut:], items)
        own = [shared[cut:] + item for item in items]
        # With some templates the query is part of the items, so all items begin alike.
        further = self.boundaries.last(_common_beginning(own))
        head = shared[:cut] + own[0][:further]
        if not head:
            return None
        ids, rest = _head_and_rest(encoder, head, (text[further:] for text in own))
        return Spliced(
            np.concatenate([self.frame.before, ids]), with_ids(rest, NO_INTS, self.frame.after)
        )

    def _item_first(self, encoder: Encoder, shared: str, items: Sequence[str]) -> Spliced | None:
        cut = self.boundaries.first(shared)
        if cut == len(shared):
            return None
        check_repeated(shared[:cut], items)
        ids, rest = _head_and_rest(encoder, shared[cut:], (item + shared[:cut] for item in items))
        return Spliced(
            np.concatenate([ids, self.frame.after]), with_ids(rest, self.frame.before, NO_INTS)
        )


def whole_texts(shared: str, items: Sequence[str], item_first: bool) -> list[str]:
    """The prompts that `Splice.encode` divides: each item with the shared text."""
    return [item + shared if item_first else shared + item for item in items]


def _common_beginning(texts: Sequence[str]) -> str:
    low, high = min(texts), max(texts)
    differing = (at for at, (a, b) in enumerate(zip(low, high, strict=False)) if a != b)
    return low[: next(differing, len(low))]


def _head_and_rest(
    encoder: Encoder, head: str, others: Iterable[str]
) -> tuple[Int32Array, FlatRows]:
    rows = encoder.rows([head, *others])
    cut = int(rows.counts[0])
    return rows.values[:cut], FlatRows(rows.values[cut:], rows.counts[1:])
