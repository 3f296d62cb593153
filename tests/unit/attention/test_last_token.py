"""The last layer's attention against the same queries of the definition in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.attention.dense import readout_attention
from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.layout.tokens import ForwardLayout
from tests.unit.attention.inputs import (
    BFLOAT16_TOLERANCE,
    CPU,
    FLOAT32_TOLERANCE,
    Inputs,
    random_inputs,
)
from tests.unit.attention.reference import attention_by_definition
from tests.unit.attention.strategies import layout, layouts


def _assert_right(forward: ForwardLayout, inputs: Inputs, tolerance: float) -> None:
    read_at = torch.from_numpy(forward.read_positions())
    whole, held = inputs
    reads = replace(whole, q=whole.q[read_at])
    out = readout_attention(forward, CPU).forward(reads, held)
    assert out.dtype == whole.q.dtype
    expected = attention_by_definition(forward, *inputs)[read_at]
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=0)


@given(
    forward=layouts().filter(lambda forward: forward.num_rows > 0),
    heads=st.sampled_from([(2, 2), (4, 2), (4, 1)]),
    dims=st.sampled_from([(16, 16), (32, 32), (16, 32)]),
    seed=st.integers(0, 1000),
)
def test_random_layouts(
    forward: ForwardLayout, heads: tuple[int, int], dims: tuple[int, int], seed: int
) -> None:
    _assert_right(forward, random_inputs(forward, heads, dims, seed=seed), FLOAT32_TOLERANCE)


@pytest.mark.parametrize(
    "forward",
    [
        layout((0, 60, *[2] * 50)),
        layout((0, 50, *[150] * 4)),
        layout((0, 0, 62)),
        layout((0, 300, *[2] * 40), (200, 80, 60, 1)),
        layout((700, 0, 300, 3), (0, 0, 20, 1, 64), (30, 600)),
    ],
    ids=["short rows", "long rows", "one row", "two groups", "no common prefix"],
)
def test_bfloat16(forward: ForwardLayout) -> None:
    _assert_right(forward, random_inputs(forward, dtype=torch.bfloat16), BFLOAT16_TOLERANCE)


def test_another_number_of_queries() -> None:
    forward = layout((0, 2, 1, 1))
    inputs, held = random_inputs(forward)
    with pytest.raises(PackingError, match="q has 4 tokens, the layout has 2"):
        readout_attention(forward, CPU).forward(inputs, held)


def test_rows_of_any_length_fit_into_memory() -> None:
    """Padding every row to the longest would take 16,000 x 16,000 keys."""
    forward = layout((0, 0, 16_000, *[1] * 16_000))
    inputs, held = random_inputs(forward, heads=(1, 1), dims=(8, 8))
    read_at = torch.from_numpy(forward.read_positions())
    out = readout_attention(forward, CPU).forward(replace(inputs, q=inputs.q[read_at]), held)
    # A row of one token sees its own value only.
    torch.testing.assert_close(out[1:], inputs.v[16_000:], atol=1e-6, rtol=0)
    assert np.isfinite(out[0].numpy()).all()
