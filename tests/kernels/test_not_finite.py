"""Numbers beyond the range of half precision, through the kernels: they are one request's."""

from __future__ import annotations

import pytest
import torch

from sglang_prefill_ext.config import AttentionWay
from tests.kernels.conftest import COMPILED
from tests.unit.forward.overflowing import HUGE, PREFIX, assert_spoils_nobody, rows

WAYS = [AttentionWay.FUSED, AttentionWay.MERGE]
HALVES = [torch.float16] + [torch.bfloat16] * COMPILED

each_way = pytest.mark.parametrize("way", WAYS)
each_dtype = pytest.mark.parametrize("half", HALVES, ids=str)
each_prefix = pytest.mark.parametrize("prefix", [PREFIX, []], ids=["shared-prefix", "no-prefix"])


@each_way
@each_dtype
@each_prefix
def test_an_embedding_beyond_the_range_spoils_nobody(
    prefix: list[int], half: torch.dtype, way: AttentionWay, device: torch.device
) -> None:
    together = assert_spoils_nobody(rows(prefix, [40, -1, 41], [42]), half, way, device)
    assert together.forwards == 3


@each_way
@each_dtype
@each_prefix
def test_a_prompt_beyond_the_range_spoils_nobody(
    prefix: list[int], half: torch.dtype, way: AttentionWay, device: torch.device
) -> None:
    together = assert_spoils_nobody(rows(prefix, [40, HUGE, 41], [42]), half, way, device)
    assert together.runtime.stats.retried_forwards == 1
