"""Cut the attention of one group into tiles. Pure Python.

A *tile* is a run of whole segments of one group; its queries attend to the tile's own tokens in
one dense call. Tiles that have the same part of the prefix outside of them form a *block*. A short
outside prefix is copied in front of the keys of every tile. The whole block attends to a long one
in one more dense call, whose result is merged by log-sum-exp.

The constants were measured on a CPU by `bench/micro/bench_attention.py`. The unit of cost is a
*pair*, one query that meets one key in every head, masked or not.
"""

from dataclasses import dataclass

from sglang_prefill_ext.layout.tokens import GroupSpan

CALL_PAIRS = 12_000
"""The cost of one more call (about 60 us with 4 heads), in pairs."""

JOIN_TOKENS = 64
"""Consecutive rows are joined to one tile while they have at most so many tokens together."""

WHOLE_GROUP_TOKENS = 256
"""A longer group never becomes one tile: its mask grows with the square of the length."""

MASKED_TILE_TOKENS = 512
"""No prefix is copied in front of a longer tile: the call would need such a mask, too."""

COPIED_PREFIX_TOKENS = 512
COPIED_PREFIX_RATIO = 4
"""A prefix is merged if it has more than COPIED_PREFIX_TOKENS tokens, or is more than
COPIED_PREFIX_RATIO times as long as the mean tile: copying it would cost more than the second call.
So at most 4 tokens of K/V are copied per token of the forward."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A run of whole segments."""

    start: int
    """Flat index of the first token."""
    segment_lens: tuple[int, ...]
    begins_with_prefix: bool
    """Whether the first segment is a fresh prefix, which every other segment sees."""

    @property
    def num_tokens(self) -> int:
        return sum(self.segment_lens)

    @property
    def stop(self) -> int:
        """Flat index after the last token."""
        return self.start + self.num_tokens


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive tiles that see the same prefix outside of them: `held`, then `fresh` tokens."""

    tiles: tuple[Tile, ...]
    held: int
    fresh: int

    @property
    def outside(self) -> int:
        """Length of the prefix that no tile of the block contains."""
        return self.held + self.fresh

    @property
    def copies_prefix(self) -> bool:
        """Whether the outside prefix is copied in front of every tile rather than merged."""
        lens = [tile.num_tokens for tile in self.tiles]
        longest_copy = min(COPIED_PREFIX_TOKENS, COPIED_PREFIX_RATIO * sum(lens) / len(lens))
        return 0 < self.outside <= longest_copy and max(lens) <= MASKED_TILE_TOKENS

    @property
    def merges_prefix(self) -> bool:
        """Whether there is an outside prefix that takes a call of its own."""
        return self.outside > 0 and not self.copies_prefix

    @property
    def num_pairs(self) -> int:
        return sum(count_pairs(tile.num_tokens, self.outside) for tile in self.tiles)


def count_pairs(num_tokens: int, outside: int) -> int:
    """Pairs of a tile of `num_tokens` tokens: with its own keys and the prefix outside of it."""
    return num_tokens * (outside + num_tokens)


def cut_group(group: GroupSpan, start: int) -> tuple[Block, ...]:
    """Return the blocks of a group whose first token has the flat index `start`.

    Every token of the group is in exactly one tile. The cut depends on the lengths alone.
    """
    lens = tuple(group.suffix_lens.tolist())
    if len(lens) <= 1:
        # A prefix that is continued by one row is one plain causal sequence.
        return (Block((Tile(start, (group.num_tokens,), False),), group.held, 0),)
    rows = Block(tuple(_join_rows(lens, start + group.fresh)), group.held, group.fresh)
    if not group.fresh:
        return (rows,)
    prefix = Block((Tile(start, (group.fresh,), True),), group.held, 0)
    whole = Block((Tile(start, (group.fresh, *lens), True),), group.held, 0)
    saves_a_call = whole.num_pairs <= prefix.num_pairs + rows.num_pairs + CALL_PAIRS
    if group.num_tokens <= WHOLE_GROUP_TOKENS and saves_a_call:
        return (whole,)
    return prefix, rows


def _join_rows(lens: tuple[int, ...], start: int) -> list[Tile]:
    """Tiles of consecutive rows, each of at most JOIN_TOKENS tokens or of a single row."""
    tiles: list[Tile] = []
    first = 0
    tokens = 0
    for row, length in enumerate(lens):
        if tokens and tokens + length > JOIN_TOKENS:
            tiles.append(Tile(start, lens[first:row], False))
            start += tokens
            first, tokens = row, 0
        tokens += length
    tiles.append(Tile(start, lens[first:], False))
    return tiles
