"""Plan attention with a sliding window or chunks as dense calls, by index arrays. Pure numpy.

A *tile* is a run of neighbouring queries of one row or fresh prefix. Its keys are the tokens of the
prompt from the first one that the first query sees to the last query. They may lie in held prefix,
fresh prefix and row, and are copied next to each other. So a tile has all keys of its queries, and
no partial results have to be merged.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.layout.tiling import CALL_PAIRS
from sglang_prefill_ext.layout.tokens import ForwardLayout, starts_of

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
    first_position: NDArray[np.int64]
    """`[B, M]` position of the first key that each query sees."""
    key_index: NDArray[np.int64]
    """`[B, K]` number of each key; padding repeats the tile's last one."""
    key_position: NDArray[np.int64]
    """`[B, K]` position of each key in its prompt; `NEVER` for padding."""


class _Tile(NamedTuple):
    queries: NDArray[np.int64]
    query_position: NDArray[np.int64]
    first_position: NDArray[np.int64]
    keys: NDArray[np.int64]
    key_position: NDArray[np.int64]


def plan_windowed(
    layout: ForwardLayout,
    window: int | None,
    queries: NDArray[np.int64] | None = None,
    *,
    chunk: int = 0,
) -> tuple[WindowBatch, ...]:
    """Cut attention into dense calls; a query sees itself and `window` tokens before it.

    Args:
        window, chunk: see `LayerInputs`.
        queries: int64 `[Q]`, strictly ascending: the tokens that are queries; None: all.

    Raises:
        PackingError: the layout is not causal; its windows would reach to both sides.
    """
    layout.require_causal_window()
    if queries is None:
        queries = np.arange(layout.num_tokens)
    first_seen = np.zeros(layout.num_tokens, np.int64)
    if window is not None:
        first_seen = np.maximum(layout.positions() - window, 0)
    if chunk:
        first_seen = np.maximum(first_seen, layout.chunk_starts(chunk))
    return tuple(_batch(tiles) for tiles in _calls(_tiles(layout, first_seen, queries)))


def _tiles(
    layout: ForwardLayout, first_seen: NDArray[np.int64], queries: NDArray[np.int64]
) -> Iterator[_Tile]:
    starts, positions = layout.segment_starts(), layout.positions()
    group_starts = layout.group_starts
    held = layout.held
    held_keys = layout.num_tokens + starts_of(held)
    group_of = np.searchsorted(group_starts, queries, side="right") - 1
    # A tile ends with its segment, or after TILE_SPAN tokens of it.
    span = (queries - starts[queries]) // TILE_SPAN
    changes = (np.diff(starts[queries]) != 0) | (np.diff(span) != 0)
    numbers = np.arange(queries.size)
    for tile in np.split(numbers, np.flatnonzero(changes) + 1):
        tokens, group = queries[tile], group_of[tile[0]]
        query_position, first_position = positions[tokens], first_seen[tokens]
        key_position = np.arange(first_position[0], query_position[-1] + 1)
        segment = starts[tokens[0]]
        keys = np.select(
            [key_position < held[group], key_position < positions[segment]],
            [held_keys[group] + key_position, group_starts[group] + key_position - held[group]],
            segment + key_position - positions[segment],
        )
        yield _Tile(tile, query_position, first_position, keys, key_position)


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
    queries, query_positions, first_positions, keys, key_positions = zip(*tiles, strict=True)
    return WindowBatch(
        *(_padded(queries), _padded(query_positions), _padded(first_positions)),
        *(_padded(keys), _padded(key_positions, NEVER)),
    )


def _padded(rows: Sequence[NDArray[np.int64]], padding: int | None = None) -> NDArray[np.int64]:
    """Rows of one length; padding repeats the last value of each unless it is given."""
    size = max(row.size for row in rows)
    ends = (row[-1] if padding is None else padding for row in rows)
    pairs = zip(rows, ends, strict=True)
    return np.stack([np.pad(row, (0, size - row.size), constant_values=end) for row, end in pairs])
