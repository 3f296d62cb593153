"""Gathering tokens to rectangles and writing them back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sglang_prefill_ext.attention.token_grid import TokenGrid

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
