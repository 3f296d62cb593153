from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sglang_prefill_ext.forward.readers.best_tokens import best_values
from sglang_prefill_ext.forward.readers.labels import label_values
from sglang_prefill_ext.wire.packed import int_array

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

    flat = int_array([label for row in labels for label in row])
    values = label_values(
        hidden, flat, int_array([*map(len, labels)]), logits_of, chunk_rows, normalised=True
    )

    table = torch.log_softmax((hidden @ head).double(), dim=-1)
    expected = [float(table[row, label]) for row, one in enumerate(labels) for label in one]
    assert values.dtype == torch.float32
    assert values.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-5)
    assert sum(chunks) == len(labels)
    assert max(chunks) <= chunk_rows


def test_half_precision_logits_are_normalised_in_float32() -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(0)).bfloat16()
    values = label_values(
        torch.arange(3.0)[:, None],
        int_array([1, 2, 3]),
        int_array([1, 1, 1]),
        lambda states: logits[states[:, 0].long()],
        chunk_rows=2,
        normalised=True,
    )
    table = torch.log_softmax(logits.double(), dim=-1)
    assert values.tolist() == pytest.approx([float(table[n, n + 1]) for n in range(3)], rel=1e-6)


def test_labels_may_lie_in_read_only_memory() -> None:
    labels = np.frombuffer(int_array([4, 2]).tobytes(), dtype=np.int32)
    hidden, head = _random(2, 1.0)
    values = label_values(
        hidden, labels, int_array([1, 1]), lambda states: states @ head, 1, normalised=True
    )
    assert len(values) == 2


def test_no_rows_need_no_logits() -> None:
    def logits_of(states: Tensor) -> Tensor:
        raise AssertionError("there is nothing to read")

    empty = int_array([])
    values = label_values(torch.empty(0, HIDDEN), empty, empty, logits_of, 4, normalised=True)
    assert values.shape == (0,)
    assert values.dtype == torch.float32


def test_plain_logits_are_read_where_no_normalisation_is_asked() -> None:
    hidden, head = _random(2, 1.0)
    columns, lens = int_array([0, 3, 3]), int_array([2, 1])
    values = label_values(hidden, columns, lens, lambda h: h @ head, 1, normalised=False)
    assert values.tolist() == pytest.approx((hidden @ head)[[0, 0, 1], [0, 3, 3]].tolist())


@pytest.mark.parametrize("normalised", [False, True])
def test_reading_does_not_wait_for_the_device(unreadable: torch.device, normalised: bool) -> None:
    hidden = torch.empty(3, HIDDEN, device=unreadable)
    head = torch.empty(HIDDEN, VOCAB, device=unreadable)
    labels = (int_array([1, 2, 3]), int_array([2, 0, 1]), lambda states: states @ head, 2)
    assert label_values(hidden, *labels, normalised=normalised).shape == (3,)
    assert best_values(hidden, *labels, num_best=2).shape == (3 + 2 * 2 * 3,)
