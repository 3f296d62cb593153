"""Capped logits and adapters without a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from sglang_prefill_ext.border.cpu.cpu_platform import capped_on_host, without_pinning

HIDDEN = torch.randn(3, 8, generator=torch.Generator().manual_seed(0)) * 50


def stock(processor: Any, hidden: Tensor, head: float, *, use_logits_buffer: bool) -> Tensor:
    """Notes the cap that SGLang would apply."""
    processor.seen.append((processor.final_logit_softcapping, use_logits_buffer))
    return hidden * head


@pytest.mark.parametrize("cap", [None, 0.0])
def test_without_a_cap_nothing_is_changed(cap: float | None) -> None:
    processor = SimpleNamespace(final_logit_softcapping=cap, seen=[])
    logits = capped_on_host(stock, processor, HIDDEN, 2.0, use_logits_buffer=False)
    assert torch.equal(logits, HIDDEN * 2)
    assert processor.seen == [(cap, False)]


def test_on_the_cpu_torch_caps() -> None:
    processor = SimpleNamespace(final_logit_softcapping=30.0, seen=[])
    logits = capped_on_host(stock, processor, HIDDEN, 2.0, use_logits_buffer=True)
    torch.testing.assert_close(logits, 30 * torch.tanh(HIDDEN * 2 / 30))
    assert processor.seen == [(None, True)]
    assert processor.final_logit_softcapping == 30.0


def test_a_failure_leaves_the_cap() -> None:
    def failing(processor: Any, hidden: Tensor) -> Tensor:
        raise RuntimeError

    processor = SimpleNamespace(final_logit_softcapping=30.0)
    with pytest.raises(RuntimeError):
        capped_on_host(failing, processor, HIDDEN)
    assert processor.final_logit_softcapping == 30.0


def pinning(scale: float, *, also: float = 0.0) -> Any:
    """Asks for pinned memory in every way that SGLang's adapters do."""
    return (
        torch.tensor([scale], pin_memory=True, device="cpu"),
        torch.zeros((1,), dtype=torch.float32, pin_memory=True) + also,
        torch.ones(1).pin_memory(),
    )


def test_tensors_are_made_all_the_same() -> None:
    made = without_pinning(pinning, 2.0, also=3.0)  # raises here without the hook
    assert [tensor.tolist() for tensor in made] == [[2.0], [3.0], [1.0]]
    assert not any(tensor.is_pinned() for tensor in made)
