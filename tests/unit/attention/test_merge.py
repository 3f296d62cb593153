"""Merging partial attention results against attention over all keys."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sglang_prefill_ext.attention.partial import merge_states
from tests.unit.attention.reference import attend

TOKENS, HEADS, DIM = 5, 4, 8


def _state(*, seed: int, lse: float = 0.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    out = torch.randn(TOKENS, HEADS, DIM, generator=generator)
    return out, torch.randn(TOKENS, HEADS, generator=generator) + lse


def _empty() -> tuple[Tensor, Tensor]:
    return torch.full((TOKENS, HEADS, DIM), torch.nan), torch.full((TOKENS, HEADS), -torch.inf)


@pytest.mark.parametrize("num_keys", [2, 7])
def test_parts_of_the_keys_give_all_of_them(num_keys: int) -> None:
    generator = torch.Generator().manual_seed(num_keys)
    q = torch.randn(HEADS, DIM, generator=generator)
    k, v = (torch.randn(num_keys, 2, DIM, generator=generator) for _ in range(2))
    first, second = attend(q, k[:1], v[:1], 0.5), attend(q, k[1:], v[1:], 0.5)
    out, lse = merge_states(*(x.float()[None] for x in (*first, *second)))
    expected_out, expected_lse = attend(q, k, v, 0.5)
    torch.testing.assert_close(out[0].double(), expected_out, atol=1e-6, rtol=0)
    torch.testing.assert_close(lse[0].double(), expected_lse, atol=1e-6, rtol=0)


def test_order_does_not_matter() -> None:
    a, b = _state(seed=1), _state(seed=2, lse=3.0)
    out, lse = merge_states(*a, *b)
    swapped_out, swapped_lse = merge_states(*b, *a)
    torch.testing.assert_close(out, swapped_out, atol=1e-6, rtol=0)
    torch.testing.assert_close(lse, swapped_lse, atol=1e-6, rtol=0)


def test_an_empty_side_is_not_used_even_if_it_is_nan() -> None:
    out, lse = state = _state(seed=1)
    for merged_out, merged_lse in (
        merge_states(*state, *_empty()),
        merge_states(*_empty(), *state),
    ):
        assert torch.equal(merged_out, out)
        assert torch.equal(merged_lse, lse)


def test_a_side_whose_weight_underflows_is_not_used() -> None:
    out, lse = _state(seed=1)
    nan, tiny = torch.full_like(out, torch.nan), lse - 200
    assert torch.equal(merge_states(out, lse, nan, tiny)[0], out)
    assert torch.equal(merge_states(nan, tiny, out, lse)[0], out)


def test_both_sides_empty_give_zero() -> None:
    out, lse = merge_states(*_empty(), *_empty())
    assert torch.equal(out, torch.zeros_like(out))
    assert torch.equal(lse, torch.full_like(lse, -torch.inf))


def test_a_side_of_unknown_weight_is_not_taken_for_an_empty_one() -> None:
    out, lse = _state(seed=1)
    nan, unknown = torch.full_like(out, torch.nan), lse.clone()
    unknown[2, 1] = torch.nan
    for merged_out, merged_lse in (
        merge_states(nan, unknown, out, lse - 200),
        merge_states(out, lse - 200, nan, unknown),
        merge_states(nan, unknown, *_empty()),
    ):
        assert merged_out[2, 1].isnan().all()
        assert merged_lse[2, 1].isnan()


def test_a_nan_with_weight_is_not_hidden() -> None:
    out, lse = _state(seed=1)
    poisoned = out.clone()
    poisoned[2, 1, 3] = torch.nan
    merged, _ = merge_states(poisoned, lse, out, lse)
    assert merged.isnan().nonzero().tolist() == [[2, 1, 3]]


def test_half_precision_keeps_its_dtype_and_large_lse_stay_finite() -> None:
    out, lse = _state(seed=1)
    half = out.to(torch.bfloat16)
    merged_out, merged_lse = merge_states(half, lse + 1e4, half, lse + 1e4)
    assert merged_out.dtype == torch.bfloat16
    assert torch.equal(merged_out, half)
    torch.testing.assert_close(merged_lse, lse + 1e4 + torch.log(torch.tensor(2.0)))
