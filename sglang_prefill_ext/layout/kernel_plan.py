"""Plan one forward for the attention kernels: tiles of queries, and their keys. Pure numpy.

A *section* is either a group's fresh prefix or all rows of the group. All queries of a section see
the same prefix outside of it, so a tile never crosses the border of a section.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.layout.tokens import ForwardLayout, starts_of

SPAN_BLOCKS = 8
"""The queries of a tile lie within so many times `block_tokens` tokens. Without this bound, one
tile would loop over all rows of a group where few tokens are queries."""

DIVIDED_PREFIX_TOKENS = 4096
"""Keys are divided into parts where the mean query sees a prefix at least so long. Joining the
parts takes one more launch, about 20 us of the host; a program takes more than twice as long for
such a prefix. An estimate."""

PART_TOKENS = 512
"""Least tokens of a prefix in a part, as the result of each part is written and read again."""

_KEY_BLOCK = 64
"""Lengths of parts are multiples of the kernel's block of keys."""


@dataclass(frozen=True, slots=True, eq=False)
class KernelPlan:
    """The arrays of the kernels' `TilePlan`, on the host.

    Every query is in `parts` tiles. Tiles are in descending order of their keys, so that no long
    one runs alone at the end.
    """

    query_token: NDArray[np.int32]
    segment_start: NDArray[np.int32]
    tiles: NDArray[np.int32]
    block_tokens: int
    parts: int = 1


def plan_tiles(
    layout: ForwardLayout,
    *,
    block_tokens: int,
    queries: NDArray[np.int64] | None = None,
    programs: int = 0,
    key_heads: int = 1,
    chunk: int = 0,
) -> KernelPlan:
    """Divide the queries of a forward into tiles; linear in its tokens.

    Args:
        layout: `held` tokens of a group are in the KV pool, all others in the forward.
        block_tokens: most queries of one tile, >= 1; the kernel says which is best.
        queries: int64 `[Q]`, strictly ascending: the tokens that are queries; None: all.
        programs: how many programs the device runs at a time. If there are so few tiles that most
            of the device would be idle, keys of long prefixes are divided among more tiles. 0:
            keys are never divided.
        key_heads: number of key heads; the kernel runs one program per tile and key head.
        chunk: see `LayerInputs`; a tile never crosses the border of a chunk.
    """
    held, fresh, group_starts = layout.held, layout.fresh, layout.group_starts
    starts = np.stack([group_starts, group_starts + fresh], axis=1).ravel()
    lens = np.diff(starts, append=layout.num_tokens)
    section = np.repeat(np.arange(starts.size), lens)
    segment_start, last_key = layout.segment_starts(), layout.last_keys()
    if queries is None:
        queries = np.arange(layout.num_tokens)
    else:
        section, segment_start = section[queries], segment_start[queries]
        last_key = last_key[queries]
    unseen, alike = np.zeros_like(queries), section
    if chunk:
        unseen = layout.chunk_starts(chunk)[queries]
        segment_start = np.maximum(segment_start, queries - layout.positions()[queries] + unseen)
        alike = section + unseen * starts.size

    first, stop = _cut(alike, queries - starts[section], block_tokens)
    group, in_rows = np.divmod(section[first], 2)
    unseen_held = np.minimum(unseen[first], held[group])
    unseen_fresh = np.minimum(unseen[first] - unseen_held, fresh[group])
    page_offset, cached_len = starts_of(held)[group] + unseen_held, held[group] - unseen_held
    fresh_start = (group_starts[group] + unseen_fresh) * in_rows
    fresh_len = (fresh[group] - unseen_fresh) * in_rows
    own_start, own_stop = segment_start[first], last_key[stop - 1] + 1
    whole = np.zeros_like(first)
    tiles = np.stack(
        [
            *(first, stop, fresh_start, fresh_start + fresh_len, own_start, own_stop),
            *(page_offset, cached_len, whole, whole),
        ],
        axis=1,
    )
    seen = int(((cached_len + fresh_len) * (stop - first)).sum()) // max(1, len(queries))
    parts = parts_of_keys(len(tiles) * key_heads, seen, programs)
    if parts > 1:
        tiles = _divided(tiles, parts)
    _, _, fresh_start, fresh_stop, own_start, own_stop, _, cached_len, _, _ = tiles.T
    num_keys = cached_len + fresh_stop - fresh_start + own_stop - own_start
    return KernelPlan(
        query_token=last_key.astype(np.int32),
        segment_start=segment_start.astype(np.int32),
        tiles=tiles[np.argsort(-num_keys, kind="stable")].astype(np.int32),
        block_tokens=block_tokens,
        parts=parts,
    )


def parts_of_keys(busy: int, prefix_tokens: int, programs: int) -> int:
    """Return among how many tiles the keys of each query are divided; 1: they are not.

    Args:
        busy: number of programs of the launch if keys are not divided.
        prefix_tokens: prefix tokens that the mean query sees outside of its section.
        programs: how many programs the device runs at a time; 0: keys are never divided.
    """
    if prefix_tokens < DIVIDED_PREFIX_TOKENS or not busy:
        return 1
    return max(1, min(programs // busy, prefix_tokens // PART_TOKENS))


def _divided(tiles: NDArray[np.int64], parts: int) -> NDArray[np.int64]:
    """Repeat every tile `parts` times, each with one part of the prefix.

    Part 0 has the end of the prefix and the tile's own keys.
    """
    number = np.tile(np.arange(parts), len(tiles))
    tiles = np.repeat(tiles, parts, axis=0)
    fresh_start, fresh_stop, cached_len = tiles[:, 2].copy(), tiles[:, 3], tiles[:, 7].copy()
    prefix = cached_len + fresh_stop - fresh_start
    size = -(-prefix // (parts * _KEY_BLOCK)) * _KEY_BLOCK
    start, stop = np.minimum(number * size, prefix), np.minimum((number + 1) * size, prefix)
    first = np.minimum(start, cached_len)
    tiles[:, 2] = fresh_start + np.maximum(start - cached_len, 0)
    tiles[:, 3] = fresh_start + np.maximum(stop - cached_len, 0)
    tiles[:, 5] = np.where(number == parts - 1, tiles[:, 5], tiles[:, 4])
    tiles[:, 6] += first
    tiles[:, 7] = np.minimum(stop, cached_len) - first
    tiles[:, 8] = prefix - stop
    tiles[:, 9] = parts - 1 - number
    return tiles


def of_fixed_size(plan: KernelPlan, most_groups: int) -> KernelPlan:
    """Append tiles without queries, as many as any layout of as many tokens may need.

    Args:
        plan: its queries are all tokens, and their keys are not divided.
        most_groups: of these layouts.
    """
    tokens = len(plan.query_token)
    # Every window of a section leaves one tile that is not full.
    windows = tokens // (SPAN_BLOCKS * plan.block_tokens) + 2 * most_groups
    missing = tokens // plan.block_tokens + windows - len(plan.tiles)
    assert missing >= 0, "choose a larger graph"
    idle = np.zeros((missing, plan.tiles.shape[1]), dtype=np.int32)
    return replace(plan, tiles=np.concatenate([plan.tiles, idle]))


def _cut(
    section: NDArray[np.int64], offset: NDArray[np.int64], block_tokens: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Number of the first query of each tile, and of the one after its last.

    Args:
        section: `[Q]`: the section of each query, and its chunk; no tile has several.
        offset: `[Q]`: index of each query's token within its section.
    """
    window = offset // (SPAN_BLOCKS * block_tokens)
    opens = np.ones(section.size, dtype=np.bool_)
    opens[1:] = (section[1:] != section[:-1]) | (window[1:] != window[:-1])
    window_first = np.flatnonzero(opens)
    window_lens = np.diff(window_first, append=section.size)
    rank = np.arange(section.size) - np.repeat(window_first, window_lens)
    first = np.flatnonzero(rank % block_tokens == 0)
    return first, np.append(first, section.size)[1:]
