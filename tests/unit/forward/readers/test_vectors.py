from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.forward.readers.vectors import VectorReader
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.planner import ForwardPlan, plan_forward
from sglang_prefill_ext.scheduling.split import split_request
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Vectors

WIDTH = 6


def plan_of(requests: list[tuple[int, int]]) -> ForwardPlan:
    """A forward of requests: (number of rows of one token, numbers read of each row)."""

    pieces = []
    for number, (rows, width) in enumerate(requests):
        ids = int_array([number] * rows)
        packed = PackedRows(ids, 0, int_array([1] * rows), Vectors(width))
        pieces += split_request(packed, ForwardBudget(100))
    return plan_forward(pieces)


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, WIDTH)), min_size=1, max_size=4),
    st.booleans(),
    st.sampled_from([0, 3]),
)
def test_every_row_gets_the_beginning_it_asks_for(
    requests: list[tuple[int, int]], unit_length: bool, state_width: int
) -> None:
    plan = plan_of(requests)
    widths = [width for rows, width in requests for _ in range(rows)]
    assert plan.reads.num_values == sum(widths)
    vectors = torch.randn(len(widths), WIDTH, generator=torch.Generator().manual_seed(1))
    if unit_length:
        vectors = torch.nn.functional.normalize(vectors, dim=-1)
    behind = torch.cat((vectors, torch.ones(len(vectors), state_width)), dim=1)
    values = VectorReader(WIDTH, unit_length=unit_length).read(behind, plan)
    assert values.dtype == torch.float32
    for number, row in enumerate(values.split(widths)):
        wanted = vectors[number, : widths[number]]
        if unit_length:
            wanted = wanted / wanted.norm()
        assert row.tolist() == pytest.approx(wanted.tolist(), abs=1e-6)


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.sampled_from([1, WIDTH, WIDTH + 3])),
        min_size=1,
        max_size=4,
    )
)
def test_states_come_behind_the_vectors_of_those_who_ask(requests: list[tuple[int, int]]) -> None:
    widths = [width for rows, width in requests for _ in range(rows)]
    vectors = torch.randn(len(widths), WIDTH + 3, generator=torch.Generator().manual_seed(1))
    values = VectorReader(WIDTH, unit_length=False).read(vectors, plan_of(requests))
    for row, vector, width in zip(values.split(widths), vectors, widths, strict=True):
        assert row.tolist() == vector[:width].tolist()


def test_reading_does_not_wait_for_the_device(unreadable: torch.device) -> None:
    vectors = torch.empty(5, WIDTH, device=unreadable)
    values = VectorReader(WIDTH, unit_length=True).read(vectors, plan_of([(2, 3), (3, WIDTH)]))
    assert values.shape == (2 * 3 + 3 * WIDTH,)
    assert values.device == unreadable


def test_half_precision_is_read_in_float32() -> None:
    vectors = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(2)).bfloat16()
    values = VectorReader(WIDTH, unit_length=True).read(vectors, plan_of([(2, WIDTH)]))
    assert values.dtype == torch.float32
    assert values.tolist() == vectors.float().flatten().tolist()


def test_a_forward_without_rows_has_no_values() -> None:

    packed = PackedRows(np.arange(9, dtype=np.int32), 8, int_array([1]), Vectors(2))
    first, *_ = split_request(packed, ForwardBudget(4))
    assert (
        VectorReader(WIDTH, unit_length=True)
        .read(torch.ones(0, WIDTH), plan_forward([first]))
        .tolist()
        == []
    )
