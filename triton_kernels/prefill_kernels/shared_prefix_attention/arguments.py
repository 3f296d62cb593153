"""Arguments of the attention kernel beside q, k and v, and the checks of all arguments.

Legend: Q queries, T tokens of the forward, H query heads that share KH key heads, head sizes D
(query, key) and Dv (value).
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Flag, auto

import torch
from torch import Tensor

from prefill_kernels.errors import FLOATS, check_launchable, check_tensor, require
from prefill_kernels.prepared import look

TILE_COLUMNS = 10


class KeyParts(Flag):
    """The parts of a query's keys."""

    CACHED = auto()
    """The cached prefix of its group."""
    FRESH = auto()
    """The fresh prefix of its group; a query of that prefix has none."""
    OWN = auto()
    """Its own row, or the fresh prefix that it is in, up to its `TilePlan.query_token`."""
    PREFIX = CACHED | FRESH
    ALL = CACHED | FRESH | OWN


@dataclass(frozen=True, slots=True)
class TilePlan:
    """Which queries are computed together, and which keys each of them sees.

    All arrays are on the device, so that a captured CUDA graph can be replayed with a new plan
    copied into the same tensors. Their contents are trusted: checking them would wait for the
    device. Build them with a planner that checks.

    Attributes:
        query_token: int32 `[Q]`, ascending: the last token of the forward that each query sees: the
            query itself or, if attention is not causal (then without a window), the end of its row.
        segment_start: int32 `[Q]`: first token of the query's own row or fresh prefix.
        tiles: int32 `[num_tiles, 10]`, the longest first: `query_start, query_stop, fresh_start,
            fresh_stop, own_start, own_stop, page_offset, cached_len, behind, part`. Queries
            `query_start..query_stop-1` are of one group. They share the tokens of the fresh prefix,
            the cached prefix (`cached_len` entries of the page table from `page_offset` on) and the
            range of tokens that has all their own keys. A tile with `query_start == query_stop`
            does nothing.
        block_tokens: most queries of a tile.
        parts: >= 1; with more than one, the keys of every query are divided among so many tiles.
            The tile with `part` 0 has the end of the prefix, the queries' own keys, and the sinks,
            if any; each of the others has another number below `parts`. `behind` is the number of
            prefix tokens that follow those of the tile.
    """

    query_token: Tensor
    segment_start: Tensor
    tiles: Tensor
    block_tokens: int
    parts: int = 1
    look: Hashable = field(init=False, repr=False, compare=False)
    """Everything that the checks read of the plan."""

    def __post_init__(self) -> None:
        tensors = look(self.query_token), look(self.segment_start), look(self.tiles)
        object.__setattr__(self, "look", (*tensors, self.block_tokens, self.parts))


@dataclass(frozen=True, slots=True)
class CachedKV:
    """Keys and values of cached prefixes.

    Attributes:
        k: `[slots, KH, D]` in the dtype of q.
        v: `[slots, KH, Dv]` in the dtype of q.
        page_table: int32 `[entries]`: the slots of each prefix, token by token.
    """

    k: Tensor
    v: Tensor
    page_table: Tensor

    def look(self) -> Hashable:
        """Everything that the checks read of the cache."""
        return look(self.k), look(self.v), look(self.page_table)


def check_inputs(q: Tensor, k: Tensor, v: Tensor, plan: TilePlan, scale: float) -> None:
    check_launchable("q", q)
    check_tensor("q", q, [None, None, None], FLOATS, q.device)
    check_tensor("k", k, [None, None, q.shape[2]], [q.dtype], q.device)
    check_tensor("v", v, [*k.shape[:2], None], [q.dtype], q.device)
    remedy = f"it must be a multiple of the {k.shape[1]} key heads; shard both alike"
    heads_match = k.shape[1] > 0 and q.shape[1] % k.shape[1] == 0
    require(heads_match, "q", f"of {q.shape[1]} heads", remedy)
    require(scale > 0, "scale", scale, "it must be positive, such as head_dim ** -0.5")
    _check_index("plan.query_token", plan.query_token, q, [q.shape[0]])
    _check_index("plan.segment_start", plan.segment_start, q, [q.shape[0]])
    _check_index("plan.tiles", plan.tiles, q, [None, TILE_COLUMNS])
    require(plan.parts >= 1, "plan.parts", plan.parts, "it must be at least 1")


def check_scores(q: Tensor, soft_cap: float, window: int | None, sinks: Tensor | None) -> None:
    require(soft_cap >= 0, "soft_cap", soft_cap, "pass a positive bound, or 0 for none")
    remedy = "pass how many tokens before its own a query sees, or None for all"
    require(window is None or window >= 0, "window", window, remedy)
    if sinks is not None:
        check_tensor("sinks", sinks, [q.shape[1]], FLOATS, q.device)


def _check_index(name: str, index: Tensor, q: Tensor, shape: list[int | None]) -> None:
    check_tensor(name, index, shape, [torch.int32], q.device, any_stride=True)
    require(index.is_contiguous(), name, f"strided by {index.stride()}", "call .contiguous()")


def check_cached(cached: CachedKV, q: Tensor, k: Tensor, v: Tensor) -> None:
    _check_index("cached.page_table", cached.page_table, q, [None])
    for name, cache, fresh in (("cached.k", cached.k, k), ("cached.v", cached.v, v)):
        check_tensor(name, cache, [None, *fresh.shape[1:]], [q.dtype], q.device)
    slots, remedy = cached.v.shape[0], f"it must have {cached.k.shape[0]}, as cached.k"
    require(cached.k.shape[0] == slots, "cached.v", f"of {slots} slots", remedy)
