"""Plan attention with a sliding window as dense calls, by index arrays. Pure numpy.

A *tile* is a run of neighbouring queries of one row or fresh prefix. Its keys are the tokens of the
prompt from the start of the first query's window to the last query. They may lie in held prefix,
fresh prefix and row, and are copied next to each other. So a tile has all keys of its queries, and
no partial results have to be merged.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.layout.tiling import CALL_PAIRS
from sglang_prefill_ext.layout.tokens import ForwardLayout

TILE_SPAN = 64
"""The queries of a tile lie within so many tokens, so that their windows largely overlap."""

CALL_KEYS = 32_768
"""Most keys that one call copies, unless one tile alone has more; bounds memory."""

NEVER = np.iinfo(np.int64).max
"""Position of a padding key: it is after every query, so no query sees it."""


@dataclass(frozen=True, slots=True, eq=False)
class WindowBatch:
    """B tiles of at most M queries and K keys that are computed by one dense call.

    Keys are numbered `[tokens of the forward][held prefix of group 0][held prefix of group 1]...`.
    """

    query_index: NDArray[np.int64]
    """`[B, M]` number of each query among those that were planned; padding repeats the last one."""
    query_position: NDArray[np.int64]
    """`[B, M]` position of each query in its prompt."""
    key_index: NDArray[np.int64]
    """`[B, K]` number of each key; padding repeats the tile's last one."""
    key_position: NDArray[np.int64]
    """`[B, K]` position of each key in its prompt; `NEVER` for padding."""


class _Tile(NamedTuple):
    queries: NDArray[np.int64]
    query_position: NDArray[np.int64]
    keys: NDArray[np.int64]
    key_position: NDArray[np.int64]


def plan_windowed(
    layout: ForwardLayout, window: int, queries: NDArray[np.int64] | None = None
) -> tuple[WindowBatch, ...]:
    """Cut attention into dense calls; a query sees itself and `window` tokens before it.

    Args:
        queries: int64 `[Q]`, strictly ascending: the tokens that are queries; None: all.

    Raises:
        PackingError: the layout is not causal; its windows would reach to both sides.
    """
    layout.require_causal_window()
    if queries is None:
        queries = np.arange(layout.num_tokens)
    return tuple(_batch(tiles) for tiles in _calls(_tiles(layout, window, queries)))


def _tiles(layout: ForwardLayout, window: int, queries: NDArray[np.int64]) -> Iterator[_Tile]:
    starts, positions = layout.segment_starts(), layout.positions()
    group_starts = layout.group_starts
    held = np.array([group.held for group in layout.groups])
    held_keys = layout.num_tokens + np.cumsum(held) - held
    group_of = np.searchsorted(group_starts, queries, side="right") - 1
    # A tile ends with its segment, or after TILE_SPAN tokens of it.
    span = (queries - starts[queries]) // TILE_SPAN
    changes = (np.diff(starts[queries]) != 0) | (np.diff(span) != 0)
    numbers = np.arange(queries.size)
    for tile in np.split(numbers, np.flatnonzero(changes) + 1):
        tokens, group = queries[tile], group_of[tile[0]]
        query_position = positions[tokens]
        first = max(0, query_position[0] - window)
        key_position = np.arange(first, query_position[-1] + 1)
        segment = starts[tokens[0]]
        keys = np.select(
            [key_position < held[group], key_position < positions[segment]],
            [
                held_keys[group] + key_position,
                group_starts[group] + key_position - held[group],
            ],
            segment + key_position - positions[segment],
        )
        yield _Tile(tile, query_position, keys, key_position)


def _calls(tiles: Iterator[_Tile]) -> Iterator[list[_Tile]]:
    """Group tiles of similar size, padded as long as that is cheaper than one more call."""
    call: list[_Tile] = []
    pairs = most_queries = 0
    for tile in sorted(tiles, key=lambda tile: (-tile.keys.size, -tile.queries.size)):
        own_pairs = tile.queries.size * tile.keys.size
        # A tile with fewer keys may have more queries than all before it.
        most_queries = max(most_queries, tile.queries.size)
        if call:
            longest = call[0].keys.size
            padded = (len(call) + 1) * most_queries * longest
            if padded - pairs - own_pairs > CALL_PAIRS or (len(call) + 1) * longest > CALL_KEYS:
                yield call
                call, pairs, most_queries = [], 0, tile.queries.size
        call.append(tile)
        pairs += own_pairs
    yield call


def _batch(tiles: Sequence[_Tile]) -> WindowBatch:
    queries = max(tile.queries.size for tile in tiles)
    keys = max(tile.keys.size for tile in tiles)
    return WindowBatch(
        np.stack([_padded(tile.queries, queries, tile.queries[-1]) for tile in tiles]),
        np.stack(
            [_padded(tile.query_position, queries, tile.query_position[-1]) for tile in tiles]
        ),
        np.stack([_padded(tile.keys, keys, tile.keys[-1]) for tile in tiles]),
        np.stack([_padded(tile.key_position, keys, NEVER) for tile in tiles]),
    )


def _padded(values: NDArray[np.int64], size: int, padding: int) -> NDArray[np.int64]:
    return np.pad(values, (0, size - values.size), constant_values=padding)
