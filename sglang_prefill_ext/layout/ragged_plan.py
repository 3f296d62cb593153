"""Plan attention of all tokens over their prefixes as one ragged call. Pure numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.layout.tokens import ForwardLayout, bounds_of


@dataclass(frozen=True, slots=True, eq=False)
class RaggedPlan:
    """Concatenated sequences, as in a varlen call; every query sees all keys of its sequence.

    Keys are numbered `[tokens of the forward][held prefix of group 0][of group 1]...`.
    """

    query_bounds: NDArray[np.int32]
    """`[S + 1]`: the queries of sequence s are the tokens from `query_bounds[s]` up to
    `query_bounds[s + 1]`. All tokens are queries; the sequences of those that see no prefix have no
    keys."""
    key_bounds: NDArray[np.int32]
    """`[S + 1]`: the keys of sequence s are the entries of `key_index` from `key_bounds[s]` up to
    `key_bounds[s + 1]`."""
    key_index: NDArray[np.int32]
    """`[K]`: numbers of the keys of all sequences."""

    @property
    def longest_queries(self) -> int:
        return int(np.diff(self.query_bounds).max())

    @property
    def longest_keys(self) -> int:
        return int(np.diff(self.key_bounds).max())

    def without_keys(self) -> NDArray[np.int32]:
        """int32 `[T]`: 1 for tokens that see no prefix, else 0."""
        empty = np.diff(self.key_bounds) == 0
        return np.repeat(empty, np.diff(self.query_bounds)).astype(np.int32)


def plan_prefixes(layout: ForwardLayout) -> RaggedPlan:
    """Plan the call: a fresh prefix sees its group's held prefix, rows see held and fresh ones."""
    queries: list[int] = []
    keys: list[NDArray[np.int64]] = []
    first_held = layout.num_tokens
    for group, start in zip(layout.groups, layout.group_starts.tolist(), strict=True):
        held = np.arange(first_held, first_held + group.held)
        fresh = np.arange(start, start + group.fresh)
        first_held += group.held
        queries += [group.fresh, group.num_tokens - group.fresh]
        keys += [held, np.concatenate([held, fresh])]
    asked = [(count, seen) for count, seen in zip(queries, keys, strict=True) if count]
    return RaggedPlan(
        bounds_of([count for count, _ in asked]).astype(np.int32),
        bounds_of([len(seen) for _, seen in asked]).astype(np.int32),
        np.concatenate([seen for _, seen in asked]).astype(np.int32),
    )
