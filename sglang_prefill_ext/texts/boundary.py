"""Places in a text where it may be cut, the two parts encoded apart, and the ids put together.

`proof` says for which tokenizers these places are what they claim to be, and why.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

MARKS = "\n.,:;!?。，：；！？"
"""What ends a word in every pattern that `proof` knows, and changes in no normaliser it knows."""

_LETTER = re.compile("[A-Za-z一-龥ぁ-んァ-ヶ가-힣]")
"""Letters of every Unicode version, which no normaliser joins with what stands before them."""

_LONGEST_SEARCH = 1024
"""Characters; a text that has no boundary in so many is hardly worth a search."""


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Where a text may be cut: before a space that follows something else, or before a mark.

    Attributes:
        marks: characters before which a text may be cut where they follow a letter.
        closing: characters after which it may not be cut: added tokens that take the spaces
            behind them end with these.
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

    def inside(self, text: str) -> bool:
        """Whether a text may be cut anywhere in it."""
        return any(self.between(before, after) for before, after in pairwise(text))
