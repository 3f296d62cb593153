"""Rows that experts compute beyond those that are routed to them. Pure."""

from __future__ import annotations

import math

from sglang_prefill_ext.sizing.model import Experts

FEW_TOKENS_BLOCK, BLOCK = 16, 64
"""Rows of one matrix product of an expert, up to as many tokens as experts and beyond, as SGLang's
Triton kernel has them where no table of a device says otherwise."""


def padded_ratio(tokens: int, experts: Experts) -> float:
    """Rows in full blocks over the rows that are routed, expected where routing is even.

    Args:
        tokens: of the forward; > 0.
    """
    block = FEW_TOKENS_BLOCK if tokens <= experts.count else BLOCK
    rows = tokens * experts.active / experts.count
    return expected_padded_rows(rows, block) / rows


def expected_padded_rows(rows: float, block: int) -> float:
    """Rows that an expert computes if `rows` > 0 are routed to it on average.

    They are taken to be Poisson distributed, which many experts come close to, and those of all
    blocks but the first to be normally distributed.
    """
    blocks, edge = -math.expm1(-rows), block
    while edge < rows + 6 * math.sqrt(rows):
        blocks += (1 + math.erf((rows - edge - 0.5) / math.sqrt(2 * rows))) / 2
        edge += block
    return block * blocks
