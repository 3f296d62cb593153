"""Choose DeepGEMM's alignment: the rows of each expert are padded to a multiple of it."""

from __future__ import annotations

from functools import lru_cache

from sglang_prefill_ext.config import MoePolicy
from sglang_prefill_ext.moe.blocks import Entry
from sglang_prefill_ext.moe.policy import choose
from sglang_prefill_ext.moe.routing import RoutingAverage

STOCK, SMALL = 128, 64
"""DeepGEMM's default alignment on Hopper, and the other one that its kernels support there; see
``docs/moe.md``."""


@lru_cache(maxsize=4096)
def alignment_for(policy: MoePolicy, rows: int, experts: int) -> int:
    """Return `STOCK` or `SMALL` for one matrix product.

    SGLang asks without saying for which layer. So the routing is taken to be that of a layer for
    which nothing was counted, see `RoutingAverage`. There are no measured times, see
    `policy.in_effect`.

    Args:
        rows: of all experts together.
        experts: number of experts on this device, at least one.
    """
    expected = RoutingAverage(1, experts).rows(rows)
    (chosen,) = choose(policy, expected, [Entry(rows, STOCK), Entry(rows, SMALL)], {})
    return chosen.block
