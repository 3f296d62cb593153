"""Labels read by the kernel from heads that scale, cap, and are divided among ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from msgspec import structs
from torch import Tensor

from sglang_prefill_ext.forward.logits import ProductHead
from sglang_prefill_ext.forward.readers.labels import LabelReader
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.planner import ForwardPlan, plan_forward
from sglang_prefill_ext.scheduling.split import split_request
from tests.unit.forward.tiny_model import HIDDEN, TinyModel
from tests.unit.wire.strategies import VOCAB, PlainRequest

LABELS = [[0, VOCAB - 1], [3], [VOCAB // 2, 1, 2]]
SCALED, CAPPED = {"scale": 0.7}, {"scale": 1.3, "soft_cap": 2.0}


class HeadModel(TinyModel):
    """A model with this head, or this part of one."""

    def __init__(self, head: ProductHead) -> None:
        super().__init__()
        self._part = head

    def product_head(self) -> ProductHead:
        return self._part


def plan_of(*, normalised: bool) -> ForwardPlan:
    request = PlainRequest([1], [[1], [2, 3], [4]], LABELS, shared_labels=False)
    rows = request.pack()
    rows = replace(rows, read=structs.replace(rows.read, normalised=normalised))
    return plan_forward(split_request(rows, ForwardBudget(100)))


def read(head: ProductHead, hidden: Tensor, plan: ForwardPlan) -> Tensor:
    return LabelReader(HeadModel(head), max_rows=1, kernels=True).read(hidden, plan)


def read_by_ranks(heads: list[ProductHead], hidden: Tensor, plan: ForwardPlan) -> list[Tensor]:
    """What each rank reads. First each rank gives its part; then each gets those of the others."""
    given: list[Tensor] = []

    def give(values: Tensor) -> Tensor:
        given.append(values)
        return values[None]

    for head in heads:
        read(replace(head, gather=give), hidden, plan)
    return [
        read(replace(head, gather=lambda _: torch.stack(given)), hidden, plan) for head in heads
    ]


def expected(head: ProductHead, hidden: Tensor, plan: ForwardPlan) -> Tensor:
    logits = head.scale * hidden.double() @ head.weight.double().T
    if head.soft_cap:
        logits = head.soft_cap * torch.tanh(logits / head.soft_cap)
    ((kind, _),) = plan.reads.by_kind()
    table = logits.log_softmax(dim=-1) if kind.normalised else logits
    places = [(row, label) for row, labels in enumerate(LABELS) for label in labels]
    return torch.stack([table[place] for place in places]).float()


@pytest.mark.parametrize("options", [{}, SCALED, CAPPED], ids=["plain", "scaled", "capped"])
@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("cuts", [(), (11,), (1, VOCAB - 1)], ids=["whole", "two", "three"])
def test_every_rank_reads_the_whole_vocabulary(
    device: torch.device, cuts: tuple[int, ...], normalised: bool, options: dict[str, float]
) -> None:
    generator = torch.Generator().manual_seed(len(cuts))
    hidden = torch.randn(len(LABELS), HIDDEN, generator=generator).to(device)
    weight = torch.randn(VOCAB, HIDDEN, generator=generator).to(device)
    plan, whole = plan_of(normalised=normalised), ProductHead(weight, **options)
    firsts = [0, *cuts]
    parts = np.split(np.arange(VOCAB), cuts)
    heads = [
        replace(whole, weight=weight[part[0] : part[-1] + 1], first=first)
        for first, part in zip(firsts, parts, strict=True)
    ]
    found = read_by_ranks(heads, hidden, plan) if cuts else [read(whole, hidden, plan)]
    for values in found:
        torch.testing.assert_close(values, expected(whole, hidden, plan), rtol=0, atol=2e-5)
