"""Host memory that cannot be pinned."""

from __future__ import annotations

import warnings
from typing import Any

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sglang_prefill_ext.border.cpu import pageable


def pinning(scale: float, *, also: float = 0.0) -> Any:
    """Asks for pinned memory in every way that SGLang's adapters do."""
    return (
        torch.tensor([scale], pin_memory=True, device="cpu"),
        torch.zeros((1,), dtype=torch.float32, pin_memory=True) + also,
        torch.ones(1).pin_memory(),
    )


def test_tensors_are_made_all_the_same() -> None:
    made = pageable.without_pinning(pinning, 2.0, also=3.0)  # raises here without the hook
    assert [tensor.tolist() for tensor in made] == [[2.0], [3.0], [1.0]]
    assert not any(tensor.is_pinned() for tensor in made)
