"""The multiple to which DeepGEMM pads the rows of an expert."""

from __future__ import annotations

import pytest

from sglang_prefill_ext.config import MoePolicy
from sglang_prefill_ext.moe.blocks import padded_rows
from sglang_prefill_ext.moe.policy import LARGE, RATIO, SMALL, alignment_for
from sglang_prefill_ext.moe.routing import RoutingAverage

CHOOSING = [policy for policy in MoePolicy if policy is not MoePolicy.STOCK]
ROWS = [1, 64, 127, 128, 1000, 4096, 18_432, 32_768, 131_072]


@pytest.mark.parametrize("policy", CHOOSING)
@pytest.mark.parametrize("experts", [1, 8, 128])
def test_64_rows_where_128_would_pad_too_much(policy: MoePolicy, experts: int) -> None:
    chosen = [alignment_for(policy, rows, experts) for rows in ROWS]
    expected = [RoutingAverage(1, experts).rows(rows) for rows in ROWS]
    ratios = [padded_rows(each, LARGE)[0] / rows for each, rows in zip(expected, ROWS, strict=True)]
    assert chosen == [SMALL if ratio > RATIO else LARGE for ratio in ratios]
    assert chosen[0] == SMALL
    assert chosen[-1] == LARGE


def test_the_stock_policy_keeps_128() -> None:
    assert {alignment_for(MoePolicy.STOCK, rows, 128) for rows in ROWS} == {LARGE}
