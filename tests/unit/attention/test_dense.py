"""Attention with soft caps, windows and sinks against the definition in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from sglang_prefill_ext.attention.dense import DenseAttention
from sglang_prefill_ext.attention.inputs import PLAIN, AttentionVariant
from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.layout.tokens import ForwardLayout
from tests.unit.attention.inputs import (
    BFLOAT16_TOLERANCE,
    CPU,
    FLOAT32_TOLERANCE,
    Inputs,
    in_slots,
    random_inputs,
)
from tests.unit.attention.reference import attention_by_definition
from tests.unit.attention.strategies import layout, layouts, whole_prompts

SINKS = torch.tensor([1.5, -4.0, 30.0, 0.0])
# The same prompts with prefixes that are merged, copied, held and absent.
FORWARD = layout((700, 0, 3, 3), (0, 300, *[2] * 20), (0, 50, 150, 150), (30, 100), (0, 0, 20, 1))

variants = st.builds(
    AttentionVariant,
    soft_cap=st.sampled_from([0.0, 2.0, 50.0]),
    window=st.none() | st.integers(0, 8) | st.integers(9, 200),
    sinks=st.sampled_from([None, SINKS]),
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


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(
    forward=layouts(),
    dims=st.sampled_from([(16, 16), (16, 32)]),
    variant=variants,
    seed=st.integers(0, 1000),
)
def test_random_layouts(
    forward: ForwardLayout, dims: tuple[int, int], variant: AttentionVariant, seed: int
) -> None:
    inputs = random_inputs(forward, dims=dims, seed=seed, variant=variant)
    _assert_right(forward, inputs, FLOAT32_TOLERANCE)


@pytest.mark.parametrize(
    "variant",
    [
        AttentionVariant(soft_cap=5.0),
        AttentionVariant(sinks=SINKS),
        AttentionVariant(soft_cap=5.0, sinks=SINKS.bfloat16()),
        AttentionVariant(window=0),
        AttentionVariant(window=1),
        AttentionVariant(window=64, soft_cap=5.0, sinks=SINKS),
        AttentionVariant(window=300),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, FLOAT32_TOLERANCE), (torch.bfloat16, BFLOAT16_TOLERANCE)],
    ids=["float32", "bfloat16"],
)
def test_each_variant(variant: AttentionVariant, dtype: torch.dtype, tolerance: float) -> None:
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
    inputs = random_inputs(forward, dims=dims, variant=AttentionVariant(soft_cap, None, sinks))
    _assert_right(forward, inputs, FLOAT32_TOLERANCE)


def test_a_window_to_both_sides_is_refused() -> None:
    forward = replace(layout((0, 0, 9, 20)), causal=False)
    inputs = random_inputs(forward, variant=AttentionVariant(window=3))
    with pytest.raises(PackingError, match="window"):
        _forward(DenseAttention(forward, CPU), inputs)


def test_layers_of_several_kinds_share_one_object() -> None:
    attention = DenseAttention(FORWARD, CPU)
    for variant in (PLAIN, AttentionVariant(window=9), PLAIN, AttentionVariant(window=40)):
        inputs = random_inputs(FORWARD, variant=variant)
        wanted = attention_by_definition(FORWARD, *inputs)
        out = _forward(attention, inputs)
        torch.testing.assert_close(out.double(), wanted, atol=FLOAT32_TOLERANCE, rtol=0)


@pytest.mark.parametrize(("window", "hides"), [(8, True), (9, False)])
def test_a_window_that_hides_nothing_is_none(window: int, hides: bool) -> None:
    forward = layout((4, 3, 2, 3))  # the last of ten tokens sees nine before it
    attention = DenseAttention(forward, CPU)
    plain, windowed = (
        _forward(attention, random_inputs(forward, variant=variant))
        for variant in (PLAIN, AttentionVariant(window=window))
    )
    assert torch.equal(plain, windowed) == (not hides)


def _assert_nan_stays_in_its_group(
    forward: ForwardLayout, bad: int, dims: tuple[int, int], variant: AttentionVariant
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
    forward: ForwardLayout, dims: tuple[int, int], variant: AttentionVariant, data: st.DataObject
) -> None:
    """Other queries of its group may be NaN as well, because one tile computes them."""
    bad = data.draw(st.integers(0, forward.num_tokens - 1))
    _assert_nan_stays_in_its_group(forward, bad, dims, variant)


@pytest.mark.parametrize("dims", [(16, 16), (16, 32)])
@pytest.mark.parametrize("bad", [1, 10, 306, 320, 360, 800])
def test_nan_is_not_lost_where_parts_are_merged(dims: tuple[int, int], bad: int) -> None:
    _assert_nan_stays_in_its_group(FORWARD, bad, dims, PLAIN)
