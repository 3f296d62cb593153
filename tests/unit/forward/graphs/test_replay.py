"""Models that no graph can run, and weights that end replays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_prefill_ext.config import AttentionWay
from sglang_prefill_ext.forward.graphs.plan import GraphUse
from sglang_prefill_ext.forward.graphs.replay import PackedGraphs, look_at_weights
from sglang_prefill_ext.layout.recurrence_plan import Recurrence


@torch.no_grad()
def test_weights_that_are_overwritten_are_still_read_by_graphs() -> None:
    whys, model = list[str](), torch.nn.Linear(2, 3)
    look = look_at_weights(model, whys.append, list)
    model.weight.copy_(torch.ones(3, 2))
    look()
    assert whys == []


@pytest.mark.parametrize("anew", ["parameter", "data", "buffer"])
def test_weights_that_are_made_anew_end_replays(anew: str) -> None:
    whys, model = list[str](), torch.nn.Linear(2, 3)
    model.register_buffer("scale", torch.ones(1))
    before = model.weight  # its memory stays taken
    look = look_at_weights(model, whys.append, list)
    if anew == "parameter":
        model.weight = torch.nn.Parameter(before.clone())
    elif anew == "data":
        kept, model.bias.data = model.bias.data, model.bias.data.clone()
        assert len(kept) == 3
    else:
        kept, model.scale = model.scale, torch.zeros(1)
    look()
    assert whys == ["an update has put weights elsewhere in memory"]


def test_replays_end_on_all_ranks_if_one_has_new_weights() -> None:
    """A rank that went on with graphs would wait for eager forwards of the others for ever."""
    whys, asked = list[str](), list[list[int]]()

    def of_other_rank(numbers: list[int]) -> list[int]:
        asked.append(numbers)
        return [1]

    look_at_weights(torch.nn.Linear(2, 3), whys.append, of_other_rank)()
    assert asked == [[0]]
    assert len(whys) == 1


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
