"""Choose how the attention kernels compute one forward: fused or merged. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.layout.tokens import ForwardLayout

MERGE_PREFIX_TOKENS = 1024
MERGE_QUERIES = 256
"""If the mean query sees a prefix at least so long, and there are so many queries, the prefixes
alone fill the device with large tiles, and a second launch pays. A first estimate from the kernels'
tile sizes; `make bench-gpu` prints the times that decide it."""


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Heads of a layer on this rank."""

    num_heads: int
    num_key_heads: int
    head_dim: int
    value_dim: int

    @property
    def group_size(self) -> int:
        """Query heads that share a key head."""
        return self.num_heads // self.num_key_heads

    @property
    def largest_dim(self) -> int:
        """The larger of the two head sizes, which a tile of keys or values must hold."""
        return max(self.head_dim, self.value_dim)


def kernel_way(asked: AttentionWay, layout: ForwardLayout) -> AttentionWay:
    """Return the way that was asked for; for AUTO, FUSED or MERGE, as is faster for the layout."""
    if asked is not AttentionWay.AUTO:
        return asked
    queries = layout.num_tokens
    seen = sum(group.prefix_len * (group.num_tokens - group.fresh) for group in layout.groups)
    long_enough = seen >= MERGE_PREFIX_TOKENS * queries and queries >= MERGE_QUERIES
    return AttentionWay.MERGE if long_enough else AttentionWay.FUSED
