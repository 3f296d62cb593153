"""Attention of all tokens, and of the last ones of rows, against the definition in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from sglang_prefill_ext.attention.dense import DenseAttention, packed_attention, readout_attention
from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.layout.tokens import ForwardLayout, GroupSpan
from tests.unit.attention.inputs import (
    BFLOAT16_TOLERANCE,
    CPU,
    FLOAT32_TOLERANCE,
    Inputs,
    in_slots,
    random_inputs,
)
from tests.unit.attention.reference import PLAIN, Variant, attention_by_definition
from tests.unit.attention.strategies import layout, layouts, whole_prompts

SINKS = torch.tensor([1.5, -4.0, 30.0, 0.0])
# The same prompts with prefixes that are merged, copied, held and absent.
FORWARD = layout((700, 0, 3, 3), (0, 300, *[2] * 20), (0, 50, 150, 150), (30, 100), (0, 0, 20, 1))

variants = st.builds(
    Variant,
    soft_cap=st.sampled_from([0.0, 2.0, 50.0]),
    window=st.none() | st.integers(0, 8) | st.integers(9, 200),
    sinks=st.sampled_from([None, SINKS]),
    chunk=st.sampled_from([0, 1, 7, 64, 150]),
)


each_dtype = pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, FLOAT32_TOLERANCE), (torch.bfloat16, BFLOAT16_TOLERANCE)],
    ids=["float32", "bfloat16"],
)


def _forward(attention: DenseAttention, inputs: Inputs) -> Tensor:
    whole, held = inputs
    cached, page_table = in_slots(held)
    attention.bind((), page_table)
    return attention.forward(whole, cached)


def _assert_right(forward: ForwardLayout, inputs: Inputs, tolerance: float) -> None:
    attention = DenseAttention(forward, CPU)
    expected = attention_by_definition(forward, *inputs)
    for _ in range(2):  # as two layers do
        out = _forward(attention, inputs)
        assert out.dtype == inputs[0].q.dtype
        torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=0)
    whole, held = inputs
    read_at = torch.from_numpy(forward.last_layer_queries())
    read = attention.read(replace(whole, q=whole.q[read_at]), in_slots(held)[0])
    wanted = expected[read_at] if forward.num_rows else torch.zeros_like(expected[:1])
    torch.testing.assert_close(read.double(), wanted, atol=tolerance, rtol=0)


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
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
        layout((0, 300, *[2] * 40), (200, 80, 60, 60), (0, 100, 30, 1)),
        layout((700, 0, 3, 3), (0, 0, 20, 1, 64), (30, 600), (70, 0, 300, 3)),
    ],
    ids=["one tile", "copied prefix", "one row", "merged prefixes", "no common prefix"],
)
@each_dtype
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


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(
    forward=layouts(),
    dims=st.sampled_from([(16, 16), (16, 32)]),
    variant=variants,
    seed=st.integers(0, 1000),
)
def test_random_variants(
    forward: ForwardLayout, dims: tuple[int, int], variant: Variant, seed: int
) -> None:
    inputs = random_inputs(forward, dims=dims, seed=seed, variant=variant)
    _assert_right(forward, inputs, FLOAT32_TOLERANCE)


@pytest.mark.parametrize(
    "variant",
    [
        Variant(soft_cap=5.0),
        Variant(sinks=SINKS),
        Variant(soft_cap=5.0, sinks=SINKS.bfloat16()),
        Variant(window=0),
        Variant(window=1),
        Variant(window=64, soft_cap=5.0, sinks=SINKS),
        Variant(window=300),
        Variant(chunk=1),
        Variant(chunk=64, soft_cap=5.0, sinks=SINKS),
        Variant(chunk=300),
        Variant(window=20, chunk=64),
    ],
    ids=str,
)
@each_dtype
def test_each_variant(variant: Variant, dtype: torch.dtype, tolerance: float) -> None:
    _assert_right(FORWARD, random_inputs(FORWARD, dtype=dtype, variant=variant), tolerance)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    forward=whole_prompts(),
    dims=st.sampled_from([(16, 16), (16, 32)]),
    soft_cap=st.sampled_from([0.0, 5.0]),
    sinks=st.sampled_from([None, SINKS]),
)
def test_prompts_that_see_all_of_themselves(
    forward: ForwardLayout, dims: tuple[int, int], soft_cap: float, sinks: torch.Tensor | None
) -> None:
    inputs = random_inputs(forward, dims=dims, variant=Variant(soft_cap, None, sinks))
    _assert_right(forward, inputs, FLOAT32_TOLERANCE)


@pytest.mark.parametrize("variant", [Variant(window=3), Variant(chunk=3)], ids=str)
def test_a_window_to_both_sides_is_refused(variant: Variant) -> None:
    forward = replace(layout((0, 0, 9, 20)), causal=False)
    inputs = random_inputs(forward, variant=variant)
    with pytest.raises(PackingError, match="window"):
        _forward(DenseAttention(forward, CPU), inputs)


def test_layers_of_several_kinds_share_one_object() -> None:
    attention = DenseAttention(FORWARD, CPU)
    for variant in (PLAIN, Variant(window=9), PLAIN, Variant(window=40), Variant(chunk=40)):
        inputs = random_inputs(FORWARD, variant=variant)
        wanted = attention_by_definition(FORWARD, *inputs)
        out = _forward(attention, inputs)
        torch.testing.assert_close(out.double(), wanted, atol=FLOAT32_TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("limits", "hides"),
    [
        (Variant(window=8), True),
        (Variant(window=9), False),
        (Variant(chunk=9), True),
        (Variant(chunk=10), False),
    ],
)
def test_limits_that_hide_nothing_are_none(limits: Variant, hides: bool) -> None:
    forward = layout((4, 3, 2, 3))  # the last of ten tokens sees nine before it
    attention = DenseAttention(forward, CPU)
    plain, windowed = (
        _forward(attention, random_inputs(forward, variant=variant)) for variant in (PLAIN, limits)
    )
    assert torch.equal(plain, windowed) == (not hides)


def _assert_nan_stays_in_its_group(
    forward: ForwardLayout, bad: int, dims: tuple[int, int], variant: Variant
) -> None:
    inputs, held = random_inputs(forward, dims=dims, variant=variant)
    spoilt = replace(inputs, **{name: getattr(inputs, name).clone() for name in "qkv"})
    for tensor in (spoilt.q, spoilt.k, spoilt.v):
        tensor[bad] = torch.nan
    sees = attention_by_definition(forward, spoilt, held).isnan().any(-1).any(-1)
    attention = DenseAttention(forward, CPU)
    out, wanted = _forward(attention, (spoilt, held)), _forward(attention, (inputs, held))
    assert out[sees].isnan().any(-1).any(-1).all()
    group = np.searchsorted(forward.group_starts, [bad, *range(forward.num_tokens)], side="right")
    elsewhere = torch.from_numpy(group[1:] != group[0])
    # Vectorised exponentials may round otherwise beside NaN.
    torch.testing.assert_close(out[elsewhere], wanted[elsewhere], atol=1e-6, rtol=0)


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(
    forward=layouts(),
    dims=st.sampled_from([(16, 16), (16, 32)]),
    variant=variants,
    data=st.data(),
)
def test_nan_is_seen_by_those_who_see_its_token_and_by_no_other_group(
    forward: ForwardLayout, dims: tuple[int, int], variant: Variant, data: st.DataObject
) -> None:
    """Other queries of its group may be NaN as well, because one tile computes them."""
    bad = data.draw(st.integers(0, forward.num_tokens - 1))
    _assert_nan_stays_in_its_group(forward, bad, dims, variant)


@pytest.mark.parametrize("dims", [(16, 16), (16, 32)])
@pytest.mark.parametrize("bad", [1, 10, 306, 320, 360, 800])
def test_nan_is_not_lost_where_parts_are_merged(dims: tuple[int, int], bad: int) -> None:
    _assert_nan_stays_in_its_group(FORWARD, bad, dims, PLAIN)
