"""Models that no graph can run, known before any capture."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.forward.graphs.plan import GraphUse
from sglang_prefill_ext.forward.graphs.replay import PackedGraphs
from sglang_prefill_ext.layout.recurrence_plan import Recurrence


@pytest.mark.parametrize(
    ("recurrence", "dtype", "obstacle"),
    [
        (
            Recurrence(4),
            torch.float32,
            "in float32 torch computes states, by the lengths of prompts",
        ),
        (
            Recurrence(4, grid=256),
            torch.bfloat16,
            "the kernels of Mamba-2 are launched by where prompts begin",
        ),
    ],
)
def test_states_that_graphs_cannot_carry(
    recurrence: Recurrence, dtype: torch.dtype, obstacle: str
) -> None:
    model: Any = SimpleNamespace(recurrence=recurrence, dtype=dtype, device=torch.device("cuda", 0))
    use = GraphUse()
    PackedGraphs(model, AttentionWay.FUSED, None, use, 64)
    assert use.obstacle == obstacle
    assert use.sizes == ()
