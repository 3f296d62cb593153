"""The way of attention on which tensor-parallel ranks agree; the choice itself is tested with the
kernels."""

from __future__ import annotations

import pytest

from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.forward.attention_choice import way_of_all_ranks


@pytest.mark.parametrize("own", AttentionWay)
@pytest.mark.parametrize("other", AttentionWay)
def test_ranks_have_one_way(own: AttentionWay, other: AttentionWay) -> None:
    asked: list[list[int]] = []

    def alone(numbers: list[int]) -> list[int]:
        asked.append(numbers)
        return numbers

    assert [way_of_all_ranks(way, alone) for way in (own, other)] == [own, other]
    together = [max(pair) for pair in zip(*asked, strict=True)]
    found = {way_of_all_ranks(way, lambda _numbers: together) for way in (own, other)}
    assert found == ({own} if own is other else {AttentionWay.TORCH})
