"""The layout of one packed forward: where every token, row and read lies. Pure numpy.

The tokens of a forward are laid out group by group::

    [fresh prefix of group 0][row 0][row 1]...[fresh prefix of group 1][row k]...

A *segment* is one bracket: a fresh prefix or a row. Positions restart at the prefix length in
every row, so each row is numbered exactly as if it had been sent alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.errors import PackingError


@dataclass(frozen=True, eq=False)  # no slots: `cached_property` needs a `__dict__`
class GroupSpan:
    """Rows that share one prefix, as far as this forward computes them.

    The prefix is `held + fresh` tokens long: `held` tokens whose K/V an earlier forward computed,
    then `fresh` tokens that this forward computes.

    Args:
        held: prefix tokens that are not in this forward, >= 0.
        fresh: prefix tokens that this forward computes, >= 0.
        suffix_lens: int32 `[rows]`, tokens of each row after the prefix, each >= 1. A group without
            rows is a chunk of a prefix that is longer than the token budget. Rows without a prefix
            (`held == fresh == 0`) are plain causal prompts.
        prefix_reads: how many tokens at the end of the fresh prefix are read, too.
        read_lens: int32 `[rows]`, how many tokens at the end of each row are read, each >= 1; None:
            one of each row.

    At least one token is in this forward.
    """

    held: int
    fresh: int
    suffix_lens: NDArray[np.int32]
    prefix_reads: int = 0
    read_lens: NDArray[np.int32] | None = None

    @property
    def prefix_len(self) -> int:
        """Length of the whole prefix: the position of the first token of every row."""
        return self.held + self.fresh

    @property
    def num_rows(self) -> int:
        return int(self.suffix_lens.size)

    @property
    def reads_row_ends(self) -> bool:
        """Whether there is one read a row, at its last token."""
        return not self.prefix_reads and self.read_lens is None

    def row_reads(self) -> NDArray[np.int64]:
        """int64 `[rows]`: reads of each row."""
        if self.read_lens is None:
            return np.ones(self.num_rows, dtype=np.int64)
        return self.read_lens.astype(np.int64)

    @cached_property
    def num_tokens(self) -> int:
        """Tokens that this forward computes for the group."""
        return self.fresh + int(self.suffix_lens.sum())


@dataclass(frozen=True, eq=False)  # no slots, as above
class ForwardLayout:
    """The groups of one forward, at least one, in the order in which their tokens are laid out.

    Args:
        causal: a token sees the tokens of its prompt up to itself. If False, as in an encoder, it
            sees its whole prompt, so prompts cannot share a prefix, and each is read at its first
            token.

    Raises:
        PackingError: a group has a prefix although `causal` is False.
    """

    groups: tuple[GroupSpan, ...]
    causal: bool = True

    def __post_init__(self) -> None:
        if not self.causal and any(group.prefix_len for group in self.groups):
            raise PackingError(
                "causal=False with a shared prefix: its tokens would see the rows behind it; make "
                "every row a whole prompt"
            )

    def require_causal_window(self) -> None:
        """Refuse a sliding window in a layout that is not causal: it would reach to both sides.

        Raises:
            PackingError: the layout is not causal.
        """
        if not self.causal:
            raise PackingError(
                "causal=False with a sliding window; this model needs the stock path"
            )

    @cached_property
    def num_tokens(self) -> int:
        return sum(group.num_tokens for group in self.groups)

    @cached_property
    def num_rows(self) -> int:
        return sum(group.num_rows for group in self.groups)

    @property
    def _is_one_prompt(self) -> bool:
        """Whether this is one row without a prefix, for which the methods below take a shortcut.

        The time of numpy's calls is felt most in the latency of a lone prompt.
        """
        (first, *others) = self.groups
        return not others and not first.prefix_len and first.num_rows == 1

    @cached_property
    def held(self) -> NDArray[np.int64]:
        """int64 `[groups]`: `GroupSpan.held` of each group."""
        return np.array([group.held for group in self.groups], dtype=np.int64)

    @cached_property
    def fresh(self) -> NDArray[np.int64]:
        """int64 `[groups]`: `GroupSpan.fresh` of each group."""
        return np.array([group.fresh for group in self.groups], dtype=np.int64)

    @cached_property
    def group_starts(self) -> NDArray[np.int64]:
        """int64 `[groups]`: flat index of the first token of each group."""
        return starts_of(np.array([group.num_tokens for group in self.groups], dtype=np.int64))

    @cached_property
    def row_starts(self) -> NDArray[np.int64]:
        """int64 `[rows]`: flat index of each row's first token."""
        if self._is_one_prompt:
            return np.zeros(1, np.int64)
        return np.delete(starts_of(self._segment_lens), self._prefixes)

    @property
    def reads_row_ends(self) -> bool:
        """Whether there is one read a row, at its last token; at its first if not `causal`."""
        return all(group.reads_row_ends for group in self.groups)

    @cached_property
    def row_ends(self) -> NDArray[np.int64]:
        """int64 `[rows]`: flat index of each row's last token."""
        if self._is_one_prompt:
            return np.array([self.num_tokens - 1])
        return np.delete(self._segment_ends, self._prefixes)

    def read_positions(self) -> NDArray[np.int64]:
        """int64 `[reads]`: flat index of each token that is read, in the order of the tokens."""
        if not self.causal:
            return self.row_starts
        if self.reads_row_ends:
            return self.row_ends
        counts = np.concatenate(
            [part for group in self.groups for part in ([group.prefix_reads], group.row_reads())]
        )
        offsets = np.arange(counts.sum()) - np.repeat(starts_of(counts), counts)
        reads: NDArray[np.int64] = np.repeat(self._segment_ends - counts + 1, counts) + offsets
        return reads

    def last_layer_queries(self) -> NDArray[np.int64]:
        """int64 `[R]`, R >= 1: the queries that the last layer needs if `reads_row_ends`.

        They are the read tokens of the rows or, where the forward has no rows, its first token.
        """
        return self.read_positions() if self.num_rows else np.zeros(1, np.int64)

    def positions(self) -> NDArray[np.int64]:
        """int64 `[T]`: position of each token in its own prompt (for rotary embeddings)."""
        if self._is_one_prompt:
            return np.arange(self.num_tokens)
        first = np.repeat(self.held + self.fresh, [1 + group.num_rows for group in self.groups])
        first[self._prefixes] = self.held
        lens = self._segment_lens
        return np.arange(self.num_tokens) + np.repeat(first - starts_of(lens), lens)

    def chunk_starts(self, chunk: int) -> NDArray[np.int64]:
        """int64 `[T]`: position of the first token of each token's chunk.

        Args:
            chunk: tokens of a chunk, >= 1; the first one begins with the prompt.
        """
        return self.positions() // chunk * chunk

    def segment_starts(self) -> NDArray[np.int64]:
        """int64 `[T]`: flat index of the first token of each token's segment."""
        return np.repeat(starts_of(self._segment_lens), self._segment_lens)

    def last_keys(self) -> NDArray[np.int64]:
        """int64 `[T]`: for each token, flat index of the last token in its segment that it sees."""
        if self.causal:
            return np.arange(self.num_tokens)
        return np.repeat(self._segment_ends, self._segment_lens)

    @cached_property
    def _segment_lens(self) -> NDArray[np.int64]:
        """One entry per segment, a fresh prefix of length zero included."""
        lens: NDArray[np.int64] = np.concatenate(
            [part for group in self.groups for part in ([group.fresh], group.suffix_lens)]
        )
        return lens

    @cached_property
    def _segment_ends(self) -> NDArray[np.int64]:
        """Flat index of the last token of each segment."""
        return self._segment_lens.cumsum(dtype=np.int64) - 1

    @cached_property
    def _prefixes(self) -> NDArray[np.int64]:
        """int64 `[groups]`: number of each group's fresh prefix among all segments."""
        return starts_of(np.array([1 + group.num_rows for group in self.groups]))


def starts_of(lens: NDArray[np.integer]) -> NDArray[np.int64]:
    """Where each of several adjacent ranges begins."""
    starts: NDArray[np.int64] = lens.cumsum(dtype=np.int64) - lens
    return starts


def bounds_of(lens: Sequence[int] | NDArray[np.integer]) -> NDArray[np.int64]:
    """Where each of several adjacent ranges begins, then where the last one ends."""
    return np.concatenate([[0], np.cumsum(lens, dtype=np.int64)])
