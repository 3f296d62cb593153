"""Choose to how many rows DeepGEMM fills up what each expert gets."""

from __future__ import annotations

from functools import lru_cache

from sglang_prefill_ext.config import MoePolicy
from sglang_prefill_ext.moe.blocks import Entry
from sglang_prefill_ext.moe.policy import choose
from sglang_prefill_ext.moe.routing import RoutingAverage

STOCK, SMALL = 128, 64
"""Rows to which DeepGEMM fills up on Hopper unless told otherwise, and the other size that its
kernels there have; see ``docs/moe.md``."""


@lru_cache(maxsize=4096)
def alignment_for(policy: MoePolicy, rows: int, experts: int) -> int:
    """`STOCK` or `SMALL` for one product.

    SGLang asks before it knows of which layer, so shares are those of a layer of which nothing has
    been counted yet. Nothing is timed: see `policy.in_effect`.

    Args:
        rows: of all experts together.
        experts: on this device, at least one.
    """
    expected = RoutingAverage(1, experts).rows(rows)
    (chosen,) = choose(policy, expected, [Entry(rows, STOCK), Entry(rows, SMALL)], {})
    return chosen.block
