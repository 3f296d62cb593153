from __future__ import annotations

import numpy as np
import pytest

from sglang_prefill_ext.sizing.forward import expected_padded_rows, padded_ratio
from sglang_prefill_ext.sizing.sublayers import Experts


@pytest.mark.parametrize("block", [16, 64, 128])
@pytest.mark.parametrize("rows", [0.1, 1, 5, 32, 75, 128, 180, 700])
def test_padded_rows_are_those_of_drawn_ones(rows: float, block: int) -> None:
    drawn = np.random.default_rng(0).poisson(rows, 20_000)
    padded = -(-drawn // block) * block
    assert expected_padded_rows(rows, block) == pytest.approx(padded.mean(), rel=0.05)


def test_blocks_are_small_up_to_as_many_tokens_as_experts() -> None:
    experts = Experts(hidden=2048, count=128, active_count=8, width=768)
    assert padded_ratio(128, experts) == expected_padded_rows(8, 16) / 8
    assert padded_ratio(1024, experts) == pytest.approx(1.47, abs=0.01)
    assert padded_ratio(2880, experts) == expected_padded_rows(180, 64) / 180
    assert padded_ratio(10**6, experts) < 1.01


def test_more_tokens_never_take_fewer_rows() -> None:
    experts = Experts(hidden=2048, count=128, active_count=8, width=768)
    padded = [tokens * padded_ratio(tokens, experts) for tokens in range(1, 5000)]
    assert (np.diff(padded) >= 0).all()
