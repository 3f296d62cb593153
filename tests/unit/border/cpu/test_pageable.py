"""Host memory that cannot be pinned."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
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


def test_tensors_are_made_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pageable, "is_pin_memory_available", lambda: False)
    made = pageable.without_pinning(pinning, 2.0, also=3.0)  # raises here without the hook
    assert [tensor.tolist() for tensor in made] == [[2.0], [3.0], [1.0]]
    assert not any(tensor.is_pinned() for tensor in made)


def test_where_memory_can_be_pinned_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pageable, "is_pin_memory_available", lambda: True)

    def asked(**options: Any) -> Any:
        return options | {"modes": torch.overrides._get_current_function_mode_stack()}

    found = pageable.without_pinning(asked, pin_memory=True)
    assert found == {"pin_memory": True, "modes": []}
