"""Plan one forward's attention as dense calls, by index arrays. Pure numpy."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.layout.tiling import CALL_PAIRS, Tile, count_pairs, cut_group
from sglang_prefill_ext.layout.tokens import ForwardLayout

_PREFIX = 0  # the segment that all other segments of the tile see
_PADDING = -1


@dataclass(frozen=True, slots=True, eq=False)
class TileBatch:
    """Tiles that are computed by one dense call.

    Shapes: B tiles of at most M tokens with E copied prefix tokens in front of each. Keys are
    numbered `[tokens of the forward][held prefix of copied_groups[0]][...of copied_groups[1]]...`.
    """

    query_index: NDArray[np.int64]
    """`[B, M]` flat index of each query's token; padding repeats the tile's last token."""
    key_index: NDArray[np.int64]
    """`[B, E + M]` number of each key; the last M columns are `query_index`."""
    segments: NDArray[np.int64]
    """`[B, M]` segment of each query within the tile: 0 is a prefix, 1 and above are rows, -1 is
    padding."""
    causal: bool
    """See `ForwardLayout`."""

    @property
    def is_padding(self) -> NDArray[np.bool_]:
        """Bool `[B, M]`."""
        return np.equal(self.segments, _PADDING)

    @property
    def is_causal(self) -> bool:
        """Whether plain causal attention without a mask is correct for every tile."""
        is_square = self.key_index.shape == self.query_index.shape
        return self.causal and is_square and not self._joins_segments

    @property
    def is_full(self) -> bool:
        """Whether every query sees every key of its tile."""
        return not self.causal and bool((self.segments == self.segments[0, 0]).all())

    @property
    def _joins_segments(self) -> bool:
        return bool((self.segments > self.segments[:, :1]).any())

    def additive_mask(self) -> NDArray[np.float32]:
        """Float32 `[B or 1, M, E + M]`: 0 where a query sees a key, else -inf.

        Every query sees itself, padding included; no token sees padding.
        """
        num_queries, num_keys = self.query_index.shape[1], self.key_index.shape[1]
        own = np.tri(num_queries, dtype=np.bool_)[None]
        if not self.causal:
            own = own | ~self.is_padding[:, None, :]
        if self._joins_segments:
            alike = (self.segments == self.segments[0]) | self.is_padding
            segments = self.segments[:1] if alike.all() else self.segments
            key = segments[:, None, :]
            own = own & ((key == segments[:, :, None]) | (key == _PREFIX))
        mask = np.zeros((own.shape[0], num_queries, num_keys), dtype=np.float32)
        mask[:, :, num_keys - num_queries :][~own] = -np.inf
        return mask


@dataclass(frozen=True, slots=True)
class PrefixSpan:
    """Consecutive queries that see a whole prefix beside the keys of their batch: one more call.

    The keys of that call are the held K/V of `group`, then those of the tokens `fresh`.
    """

    queries: slice
    """Token numbers or, of `last_token_plan`, row numbers."""
    group: int
    """The group whose held K/V, if any, come first."""
    fresh: slice
    """Flat indices of the fresh prefix; may be empty."""


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Every dense call of one layer's attention."""

    batches: tuple[TileBatch, ...]
    """Apart from padding, every token of the forward is a query of exactly one batch."""
    copied_groups: tuple[int, ...]
    """Groups whose held K/V are appended to the keys of the forward, in this order."""
    spans: tuple[PrefixSpan, ...]
    """Prefixes that are merged; their queries do not overlap."""


_Placed: TypeAlias = tuple[Tile, NDArray[np.int64]]
"""A tile and the numbers of the keys that are copied in front of its own."""


def plan_attention(layout: ForwardLayout) -> AttentionPlan:
    """Cut the attention of a forward into dense calls; depends on the layout alone."""
    placed: list[_Placed] = []
    copied_groups: list[int] = []
    spans: list[PrefixSpan] = []
    num_keys = layout.num_tokens
    for index, (group, start) in enumerate(
        zip(layout.groups, layout.group_starts.tolist(), strict=True)
    ):
        blocks = cut_group(group, start)
        held_keys = np.arange(num_keys, num_keys + group.held)
        if group.held and any(block.copies_prefix for block in blocks):
            copied_groups.append(index)
            num_keys += group.held
        for block in blocks:
            fresh = slice(start, start + block.fresh)
            front = held_keys[:0]
            if block.copies_prefix:
                front = np.concatenate([held_keys, np.arange(fresh.start, fresh.stop)])
            elif block.merges_prefix:
                queries = slice(block.tiles[0].start, block.tiles[-1].stop)
                spans.append(PrefixSpan(queries, index, fresh))
            placed.extend((tile, front) for tile in block.tiles)
    batches = tuple(_batches(placed, causal=layout.causal))
    return AttentionPlan(batches, tuple(copied_groups), tuple(spans))


def _batches(placed: Iterable[_Placed], *, causal: bool) -> Iterator[TileBatch]:
    """Batch tiles with equally many keys in front; padding must be cheaper than one more call."""
    batch: list[_Placed] = []
    wasted = 0
    for tile, front in sorted(placed, key=lambda item: (item[1].size, -item[0].num_tokens)):
        if batch:
            longest, batch_front = batch[0]
            padded = count_pairs(longest.num_tokens, front.size)
            wasted += padded - count_pairs(tile.num_tokens, front.size)
            if wasted > CALL_PAIRS or front.size != batch_front.size:
                yield _batch(batch, causal=causal)
                batch, wasted = [], 0
        batch.append((tile, front))
    yield _batch(batch, causal=causal)


def _batch(placed: Sequence[_Placed], *, causal: bool) -> TileBatch:
    starts = np.array([tile.start for tile, _ in placed])
    lens = np.array([tile.num_tokens for tile, _ in placed])
    query_index = starts[:, None] + np.minimum(np.arange(lens.max()), lens[:, None] - 1)
    segments = np.full(query_index.shape, _PADDING)
    for row, (tile, _) in enumerate(placed):
        ids = np.arange(len(tile.segment_lens)) + (not tile.begins_with_prefix)
        segments[row, : tile.num_tokens] = np.repeat(ids, tile.segment_lens)
    key_index = np.concatenate([np.stack([front for _, front in placed]), query_index], axis=1)
    return TileBatch(query_index, key_index, segments, causal)
