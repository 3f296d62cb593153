"""Counting rows of experts and choosing by them never waits, on a pretended GPU.

Tensors of the device have no numbers, so what needed one on the host would fail, and events and
streams count what is asked of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from sglang_prefill_ext.config import MoePolicy, MoeSource
from sglang_prefill_ext.forward.expert_blocks import LOOK_EVERY, ExpertBlocks
from sglang_prefill_ext.forward.expert_counts import ExpertCounts
from sglang_prefill_ext.moe.blocks import BlockTable, Entry

GPU = torch.device("cuda", 0)
LAYERS, EXPERTS, TOKENS = 3, 16, 2000


class Asked(Counter[str]):
    """Counts of what was asked of the pretended device."""

    arrived = False


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    asked = Asked()

    class Event:
        def record(self) -> None:
            asked["record"] += 1

        def query(self) -> bool:
            asked["query"] += 1
            return asked.arrived

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"the host asks an event to {name}")

    def waits(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("the host waits")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    for place in (torch.cuda, torch.cuda.Stream):
        monkeypatch.setattr(place, "synchronize", waits)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode():
        yield asked


def blocks_on_the_gpu(source: MoeSource) -> tuple[ExpertBlocks, ExpertCounts]:
    counts = ExpertCounts(LAYERS, EXPERTS, GPU)
    table = BlockTable({512: 64, 2048: 128})
    policy = MoePolicy.PADDING_RATIO
    blocks = ExpertBlocks(LAYERS, EXPERTS, table, policy, {}, counts, source=source)
    blocks.learning = True
    return blocks, counts


def ids_on_the_gpu() -> Tensor:
    return torch.zeros((TOKENS, 1), dtype=torch.int32, device=GPU)


def forward(blocks: ExpertBlocks, ids: Tensor) -> set[Any]:
    return {blocks.entry(layer, ids, capturing=False) for layer in range(LAYERS)}


@pytest.mark.parametrize("source", MoeSource)
def test_no_forward_waits_for_counts(asked: Asked, source: MoeSource) -> None:
    blocks, _ = blocks_on_the_gpu(source)
    for _ in range(4 * LOOK_EVERY):
        forward(blocks, ids_on_the_gpu())
    # One forward was counted; each later one checks whether these counts came, without waiting.
    assert asked == {"record": 1, "query": 4 * LOOK_EVERY - 2}


def test_counts_that_have_come_are_used(asked: Asked) -> None:
    blocks, counts = blocks_on_the_gpu(MoeSource.HISTORY)
    ids = ids_on_the_gpu()
    assert forward(blocks, ids) == {Entry(512, 64)}
    forward(blocks, ids)
    asked.arrived = True
    with unset_fake_temporarily():
        counts._host = torch.full((LAYERS, EXPERTS + 1), TOKENS // EXPERTS, dtype=torch.int32)
        assert forward(blocks, ids) == {None}
    assert [layer.busiest_share for layer in blocks.balance] == [1 / EXPERTS] * LAYERS
