"""Gathering tokens to rectangles and writing them back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sglang_prefill_ext.attention.dense_calls import TokenGrid, in_token_order

CPU = torch.device("cpu")


@pytest.mark.parametrize("index", [[[2, 3], [4, 5]], [[5, 2], [2, 0]], [[1, 3, 5]]])
def test_gather(index: list[list[int]]) -> None:
    tokens = torch.randn(7, 3, 8, generator=torch.Generator().manual_seed(0)).transpose(1, 2)
    assert torch.equal(TokenGrid(np.array(index), CPU).gather(tokens), tokens[torch.tensor(index)])


@pytest.mark.parametrize("index", [[[2, 3], [4, 5]], [[5, 2], [1, 0]]])
def test_scatter(index: list[list[int]]) -> None:
    values = torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(0))
    tokens = torch.zeros(7, 3)
    TokenGrid(np.array(index), CPU).scatter(values, tokens)
    expected = torch.zeros(7, 3)
    expected[torch.tensor(index)] = values
    assert torch.equal(tokens, expected)


def test_consecutive_tokens_are_not_copied() -> None:
    tokens = torch.zeros(7, 3)
    grid = TokenGrid(np.array([[2, 3], [4, 5]]), CPU)
    assert grid.is_contiguous
    assert grid.gather(tokens).data_ptr() == tokens[2].data_ptr()
    assert not TokenGrid(np.array([[2, 3], [4, 4]]), CPU).is_contiguous


def _part(index: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Results of a dense call whose values identify their tokens."""
    lse = torch.tensor(index, dtype=torch.float32)[..., None]
    return lse[..., None].expand(-1, -1, 1, 3), lse


@pytest.mark.parametrize(
    "indices", [[[[2, 0]], [[1], [3]]], [[[0, 1], [2, 3]]], [[[3], [2], [1], [0]]]]
)
def test_results_of_all_calls_come_in_the_order_of_the_tokens(
    indices: list[list[list[int]]],
) -> None:
    grids = [TokenGrid(np.array(index), CPU) for index in indices]
    out, lse = in_token_order(grids, map(_part, indices), num_tokens=4)
    assert lse.tolist() == [[0.0], [1.0], [2.0], [3.0]]
    assert torch.equal(out, lse[..., None].expand(4, 1, 3))


def test_results_of_a_call_for_consecutive_tokens_are_not_copied() -> None:
    part = torch.zeros(2, 2, 1, 3), torch.zeros(2, 2, 1)
    out, lse = in_token_order([TokenGrid(np.array([[0, 1], [2, 3]]), CPU)], [part], num_tokens=4)
    assert (out.data_ptr(), lse.data_ptr()) == (part[0].data_ptr(), part[1].data_ptr())
