from __future__ import annotations

import pytest

from sglang_prefill_ext.attention.way import HeadShape, kernel_way
from sglang_prefill_ext.config import AttentionWay
from tests.unit.attention.strategies import layout

SHORT, LONG = (0, 100, *[10] * 30), (0, 2000, *[100] * 30)


def test_query_heads_of_a_key_head() -> None:
    assert HeadShape(8, 2, 64, 64).group_size == 4


@pytest.mark.parametrize("asked", [AttentionWay.FUSED, AttentionWay.MERGE])
def test_what_is_asked_for_is_used(asked: AttentionWay) -> None:
    assert kernel_way(asked, layout(SHORT)) is asked
    assert kernel_way(asked, layout(LONG)) is asked


@pytest.mark.parametrize(
    ("groups", "way"),
    [
        ([SHORT], AttentionWay.FUSED),
        ([LONG], AttentionWay.MERGE),
        ([LONG, SHORT], AttentionWay.MERGE),
        ([(2000, 0, *[100] * 30)], AttentionWay.MERGE),  # held counts like fresh
        ([(2000, 0, *[1] * 255)], AttentionWay.FUSED),  # too few queries
        ([(2000, 0, *[1] * 256)], AttentionWay.MERGE),
        ([(1023, 0, *[1] * 256)], AttentionWay.FUSED),
        ([(1024, 0, *[1] * 256)], AttentionWay.MERGE),
        ([(0, 4000, 1)], AttentionWay.FUSED),  # the prefix's own tokens do not see it whole
        ([(0, 4000)], AttentionWay.FUSED),
    ],
)
def test_long_prefixes_of_many_queries_are_merged(
    groups: list[tuple[int, ...]], way: AttentionWay
) -> None:
    assert kernel_way(AttentionWay.AUTO, layout(*groups)) is way
