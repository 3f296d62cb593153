"""How recurrent layers pass through a forward: prefixes first, then rows from where these end.

Pure numpy. A recurrent layer has a convolution over the last few tokens of a prompt, and a state
that it carries from token to token.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.layout.tokens import ForwardLayout


@dataclass(frozen=True, slots=True, eq=False)
class Sequences:
    """Stretches of prompts that lie one behind the other.

    Attributes:
        lens: int64 ``[n]``, tokens of each, >= 1.
        slots: int32 ``[n]``, the state from which each starts.
    """

    lens: NDArray[np.int64]
    slots: NDArray[np.int32]

    @property
    def bounds(self) -> NDArray[np.int32]:
        """int32 ``[n + 1]``: where each begins, then the number of tokens."""
        return np.concatenate([[0], self.lens.cumsum()]).astype(np.int32)


@dataclass(frozen=True, eq=False)  # no slots: `cached_property` needs a `__dict__`
class RecurrencePlan:
    """What all recurrent layers of one forward read.

    States are numbered: 0 is that of a prompt without tokens, then one for each group with a
    prefix. A layer first carries these through the fresh prefixes, and then starts every row from
    one of them.

    Args:
        width: how many tokens of a prompt the convolution sees at a time, the last one included.
    """

    layout: ForwardLayout
    width: int

    @cached_property
    def group_slots(self) -> NDArray[np.int32]:
        """int32 ``[groups]``: the state of each group's prefix."""
        has_prefix = np.array([group.prefix_len > 0 for group in self.layout.groups])
        slots: NDArray[np.int32] = (has_prefix.cumsum() * has_prefix).astype(np.int32)
        return slots

    @property
    def num_slots(self) -> int:
        return 1 + int(self.group_slots.max())

    @cached_property
    def prefixes(self) -> Sequences:
        """The fresh prefixes."""
        has_fresh = self._fresh > 0
        return Sequences(self._fresh[has_fresh], self.group_slots[has_fresh])

    @cached_property
    def rows(self) -> Sequences:
        return Sequences(self._row_lens, self.group_slots[self._row_groups])

    def order(self) -> NDArray[np.int32] | None:
        """int32 ``[T]``: tokens of all prefixes, then those of all rows; None if they lie so."""
        if len(self.layout.groups) == 1 or not self._fresh.any() or not self.layout.num_rows:
            return None
        is_row = self._is_row
        return np.concatenate([np.flatnonzero(~is_row), np.flatnonzero(is_row)]).astype(np.int32)

    def previous(self) -> NDArray[np.int32]:
        """int32 ``[T, width - 1]``: the tokens before each token in its prompt, the nearest last.

        Tokens of a held prefix are numbered from ``T`` on: ``T + width - 2`` is its last one.
        ``T + width - 1`` stands for no token.
        """
        offsets = np.arange(self.layout.num_tokens) - self.layout.segment_starts()
        back = np.arange(self.width - 1, 0, -1)
        inside = np.arange(self.layout.num_tokens)[:, None] - back
        before_segment = back - offsets[:, None]
        crossing = before_segment > 0
        tokens, places = np.nonzero(crossing)
        inside[tokens, places] = self._before(
            self._groups[tokens], self._is_row[tokens], before_segment[tokens, places]
        )
        return inside.astype(np.int32)

    def tail(self, group: int) -> NDArray[np.int32]:
        """int32 ``[width - 1]``: the last tokens of a group's prefix, numbered as in `previous`."""
        back = np.arange(self.width - 1, 0, -1)
        groups = np.full(len(back), group)
        return self._before(groups, np.ones(len(back), dtype=bool), back).astype(np.int32)

    def _before(
        self, groups: NDArray[np.int64], of_row: NDArray[np.bool_], back: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The token that lies `back` >= 1 tokens before the start of a row, or of a prefix."""
        fresh = np.where(of_row, self._fresh[groups], 0)
        in_held = back - fresh  # counted from the end of the held prefix, from 1
        held = np.array([group.held for group in self.layout.groups], dtype=np.int64)[groups]
        first_held, nothing = self.layout.num_tokens, self.layout.num_tokens + self.width - 1
        outside = np.where(in_held <= held, first_held + self.width - 1 - in_held, nothing)
        before: NDArray[np.int64] = np.where(
            back <= fresh, self.layout.group_starts[groups] + fresh - back, outside
        )
        return before

    @cached_property
    def _fresh(self) -> NDArray[np.int64]:
        return np.array([group.fresh for group in self.layout.groups], dtype=np.int64)

    @cached_property
    def _row_lens(self) -> NDArray[np.int64]:
        return np.concatenate([group.suffix_lens for group in self.layout.groups]).astype(np.int64)

    @cached_property
    def _row_groups(self) -> NDArray[np.int64]:
        rows = [group.num_rows for group in self.layout.groups]
        return np.repeat(np.arange(len(rows)), rows)

    @cached_property
    def _groups(self) -> NDArray[np.int64]:
        """int64 ``[T]``: the group of each token."""
        tokens = [group.num_tokens for group in self.layout.groups]
        return np.repeat(np.arange(len(tokens)), tokens)

    @cached_property
    def _is_row(self) -> NDArray[np.bool_]:
        """bool ``[T]``: whether each token is one of a row, and not of a prefix."""
        offsets = np.arange(self.layout.num_tokens) - self.layout.group_starts[self._groups]
        is_row: NDArray[np.bool_] = offsets >= self._fresh[self._groups]
        return is_row
