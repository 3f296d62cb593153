"""The soft cap of logits, with SGLang's own processor."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sglang_prefill_ext.border.cpu.soft_cap import capped_on_host

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
