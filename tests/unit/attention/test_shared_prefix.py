"""Packed attention against attention by definition in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_prefill_ext.attention.dense import packed_attention
from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.layout.tokens import ForwardLayout, GroupSpan
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
    attention = packed_attention(forward, CPU)
    expected = attention_by_definition(forward, *inputs)
    for _ in range(2):  # as two layers do
        out = attention.forward(*inputs)
        assert out.dtype == inputs[0].q.dtype
        torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=0)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    forward=layouts(),
    heads=st.sampled_from([(2, 2), (4, 2), (4, 1)]),
    dims=st.sampled_from([(16, 16), (32, 32), (64, 64), (16, 32), (32, 16)]),
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
        layout((0, 300, *[2] * 40), (200, 80, 60, 60)),
        layout((700, 0, 3, 3), (0, 0, 20, 1, 64), (30, 600)),
    ],
    ids=["one tile", "copied prefix", "one row", "merged prefixes", "no common prefix"],
)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, FLOAT32_TOLERANCE), (torch.bfloat16, BFLOAT16_TOLERANCE)],
    ids=["float32", "bfloat16"],
)
def test_each_way_of_computing(
    forward: ForwardLayout, dtype: torch.dtype, tolerance: float
) -> None:
    _assert_right(forward, random_inputs(forward, dtype=dtype), tolerance)


def test_equal_rows_get_equal_results() -> None:
    forward = layout((0, 9, 4, 4, 4))
    inputs, held = random_inputs(forward)
    for tensor in (inputs.q, inputs.k, inputs.v):
        tensor[13:17] = tensor[9:13]
        tensor[17:21] = tensor[9:13]
    out = packed_attention(forward, CPU).forward(inputs, held)
    torch.testing.assert_close(out[13:17], out[9:13], atol=1e-6, rtol=0)
    torch.testing.assert_close(out[17:21], out[9:13], atol=1e-6, rtol=0)


@settings(deadline=None, max_examples=60)
@given(forward=layouts().filter(lambda forward: forward.num_rows > 0), data=st.data())
def test_a_row_does_not_depend_on_its_company(forward: ForwardLayout, data: st.DataObject) -> None:
    rows = [
        (index, row) for index, span in enumerate(forward.groups) for row in range(span.num_rows)
    ]
    index, row = data.draw(st.sampled_from(rows))
    span = forward.groups[index]
    alone = ForwardLayout((GroupSpan(span.held, span.fresh, span.suffix_lens[row : row + 1]),))
    start = int(forward.group_starts[index])
    row_start = start + span.fresh + int(span.suffix_lens[:row].sum())
    length = int(span.suffix_lens[row])
    tokens = np.r_[start : start + span.fresh, row_start : row_start + length]
    inputs, held = random_inputs(forward)
    packed = packed_attention(forward, CPU).forward(inputs, held)
    of_row = replace(inputs, q=inputs.q[tokens], k=inputs.k[tokens], v=inputs.v[tokens])
    single = packed_attention(alone, CPU).forward(of_row, [held[index]])
    # The same sums in another order: larger numbers differ by more.
    torch.testing.assert_close(packed[tokens], single, atol=1e-6, rtol=1e-6)


def test_inputs_are_left_as_they_are() -> None:
    forward = layout((300, 40, 30, 30))
    inputs, held = random_inputs(forward)
    tensors = (inputs.q, inputs.k, inputs.v)
    before = [tensor.clone() for tensor in tensors]
    packed_attention(forward, CPU).forward(inputs, held)
    assert all(torch.equal(a, b) for a, b in zip(before, tensors, strict=True))


def test_held_prefix_of_another_length() -> None:
    forward = layout((3, 2, 1, 1), (0, 2, 1))
    inputs, held = random_inputs(forward)
    with pytest.raises(PackingError, match=r"held has \[0, 0\] tokens per group.*\[3, 0\]"):
        packed_attention(forward, CPU).forward(inputs, [None, held[1]])


def test_another_number_of_tokens() -> None:
    forward = layout((0, 2, 1, 1))
    inputs, held = random_inputs(forward)
    with pytest.raises(PackingError, match="k has 3 tokens, the layout has 4"):
        packed_attention(forward, CPU).forward(replace(inputs, k=inputs.k[:3]), held)
