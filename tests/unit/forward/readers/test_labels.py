from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sglang_prefill_ext.forward.logits import (
    Pick,
    ProductHead,
    log_probs_at_labels,
    logits_at_labels,
    product,
    values_by_chunk,
)
from sglang_prefill_ext.forward.readers.labels import LabelReader, best_tokens
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.planner import plan_forward
from sglang_prefill_ext.scheduling.split import split_request
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Labels
from tests.unit.forward.tiny_model import TinyModel
from tests.unit.wire.strategies import reads_of

HIDDEN, VOCAB = 6, 11


def _random(rows: int, scale: float) -> tuple[Tensor, Tensor]:
    """Hidden states and an output head whose logits are about `scale` large."""
    generator = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, HIDDEN, generator=generator)
    return hidden, scale * torch.randn(HIDDEN, VOCAB, generator=generator)


LABEL_LISTS = st.lists(
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4), min_size=1, max_size=9
)


@given(LABEL_LISTS, st.integers(1, 12), st.sampled_from([1.0, 30.0]))
def test_values_equal_log_softmax_for_every_chunk_size(
    labels: list[list[int]], chunk_rows: int, scale: float
) -> None:
    hidden, head = _random(len(labels), scale)
    chunks: list[int] = []

    def logits_of(states: Tensor) -> Tensor:
        chunks.append(len(states))
        return states @ head

    values = values_by_chunk(hidden, reads_of(labels), logits_of, chunk_rows, log_probs_at_labels)

    table = torch.log_softmax((hidden @ head).double(), dim=-1)
    expected = [float(table[row, label]) for row, one in enumerate(labels) for label in one]
    assert values.dtype == torch.float32
    assert values.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-5)
    assert sum(chunks) == len(labels)
    assert max(chunks) <= chunk_rows


def test_half_precision_logits_are_normalised_in_float32() -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(0)).bfloat16()
    values = values_by_chunk(
        torch.arange(3.0)[:, None],
        reads_of([[1], [2], [3]]),
        lambda states: logits[states[:, 0].long()],
        2,
        log_probs_at_labels,
    )
    table = torch.log_softmax(logits.double(), dim=-1)
    assert values.tolist() == pytest.approx([float(table[n, n + 1]) for n in range(3)], rel=1e-6)


def test_labels_may_lie_in_read_only_memory() -> None:
    labels = np.frombuffer(int_array([4, 2]).tobytes(), dtype=np.int32)
    hidden, head = _random(2, 1.0)
    reads = replace(reads_of([[4], [2]]), label_ids=labels)
    values = values_by_chunk(hidden, reads, lambda states: states @ head, 1, log_probs_at_labels)
    assert len(values) == 2


def test_plain_logits_are_read_where_no_normalisation_is_asked() -> None:
    hidden, head = _random(2, 1.0)
    reads = reads_of([[0, 3], [3]])
    values = values_by_chunk(hidden, reads, lambda h: h @ head, 1, logits_at_labels)
    assert values.tolist() == pytest.approx((hidden @ head)[[0, 0, 1], [0, 3, 3]].tolist())


@pytest.mark.parametrize(
    ("pick", "more"),
    [(logits_at_labels, 0), (log_probs_at_labels, 0), (best_tokens(2), 2 * 2)],
    ids=["logits", "log-probs", "best tokens"],
)
def test_reading_does_not_wait_for_the_device(
    unreadable: torch.device, pick: Pick, more: int
) -> None:
    hidden = torch.empty(3, HIDDEN, device=unreadable)
    head = torch.empty(HIDDEN, VOCAB, device=unreadable)
    reads = reads_of([[1, 2], [], [3]])
    values = values_by_chunk(hidden, reads, lambda states: states @ head, 2, pick)
    assert values.shape == (3 + more * 3,)


class FullHeadModel(TinyModel):
    """A model whose output head has a dtype of its own, as that of Falcon-H1."""

    def __init__(self, head: ProductHead) -> None:
        super().__init__()
        self._product = head

    def product_head(self) -> ProductHead:
        return self._product

    def logits(self, hidden: Tensor) -> Tensor:
        return self._product.scale * product(self._product.weight, hidden)


@pytest.mark.parametrize("scale", [1.0, 0.75])
@pytest.mark.parametrize(
    "asked",
    [{"normalised": True}, {"normalised": False}, {"num_best": 2}],
    ids=["log-probs", "logits", "best tokens"],
)
def test_a_head_of_another_dtype_is_read_in_its_own(scale: float, asked: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(2, HIDDEN, generator=generator).bfloat16()
    weight = torch.randn(VOCAB, HIDDEN, generator=generator)
    model = FullHeadModel(ProductHead(weight, scale=scale))
    rows = PackedRows(int_array([1, 2]), 0, int_array([1, 1]), Labels(int_array([0, 7]), **asked))
    plan = plan_forward(split_request(rows, ForwardBudget(9)))
    found = LabelReader(model, max_rows=1, kernels=True).read(hidden, plan).view(2, -1)
    logits = scale * hidden.double() @ weight.double().T
    expected = logits if asked == {"normalised": False} else logits.log_softmax(-1)
    # The product is not rounded to bfloat16, which would be off by about 1e-2.
    torch.testing.assert_close(found[:, :2].double(), expected[:, [0, 7]], rtol=0, atol=1e-5)
