"""Capped logits without a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from sglang_prefill_ext.border.cpu.cpu_platform import capped_on_host

HIDDEN = torch.randn(3, 8, generator=torch.Generator().manual_seed(0)) * 50


def test_a_failure_leaves_the_cap() -> None:
    def failing(processor: Any, hidden: Tensor) -> Tensor:
        raise RuntimeError

    processor = SimpleNamespace(final_logit_softcapping=30.0)
    with pytest.raises(RuntimeError):
        capped_on_host(failing, processor, HIDDEN)
    assert processor.final_logit_softcapping == 30.0
