from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedRows
from sglang_prefill_ext.wire.read import Labels
from sglang_prefill_ext.wire.sampling import WHOLE_VOCABULARY, Draw, Sampling
from tests.unit.wire.strategies import Params, sampling_params

PARAMS = st.lists(sampling_params(), min_size=1, max_size=6)
USUAL: Params = {
    "temperature": 1.0,
    "top_p": 1.0,
    "min_p": 0.0,
    "top_k": WHOLE_VOCABULARY,
    "seed": 42,
    "biases": {},
    "other_bias": 0.0,
}


def packed(rows: list[Params]) -> Sampling:
    joined = Sampling.joined(Sampling.one(**row) for row in rows)
    assert joined is not None
    return joined


def unpacked(sampling: Sampling) -> list[Params]:
    assert sampling.rows_of_biases.tolist() == sorted(sampling.rows_of_biases)
    rows = []
    for number, draw in enumerate(sampling.draws):
        own = sampling.biases[sampling.rows_of_biases == number].tolist()
        assert draw["num_biases"] == len(own)
        names = ("temperature", "top_p", "min_p", "top_k", "seed", "other_bias")
        rows.append({name: draw[name].item() for name in names} | {"biases": dict(own)})
    return rows


def test_of_parts_without_draws_nothing_is_left() -> None:
    assert Sampling.joined([None, None]) is None
    joined = Sampling.joined([None, Sampling.one(**USUAL)])
    assert joined is not None
    assert unpacked(joined) == [USUAL]


@given(PARAMS)
def test_a_round_trip_through_bytes_keeps_every_row(rows: list[Params]) -> None:
    sent = packed(rows)
    received = Sampling.from_bytes(sent.draws.tobytes(), sent.biases.tobytes())
    assert unpacked(received) == rows
    assert len(received) == len(rows)


@given(PARAMS, st.data())
def test_some_rows_are_taken_with_what_is_theirs(rows: list[Params], data: st.DataObject) -> None:
    first, last = data.draw(st.integers(0, 6)), data.draw(st.integers(0, 6))
    assert unpacked(packed(rows)[first:last]) == rows[first:last]
    mask = np.array([data.draw(st.booleans()) for _ in rows], dtype=np.bool_)
    chosen = [row for row, is_wanted in zip(rows, mask, strict=True) if is_wanted]
    assert unpacked(packed(rows)[mask]) == chosen


@pytest.mark.parametrize(
    ("params", "draw"),
    [
        ({}, Draw.PLAIN),
        ({"temperature": 0.3, "biases": {5: 1.0}}, Draw.PLAIN),
        ({"top_k": 1, "top_p": 0.5}, Draw.GREEDY),
        ({"top_k": 2}, Draw.FILTERED),
        ({"top_p": 0.99}, Draw.FILTERED),
        ({"min_p": 0.01}, Draw.FILTERED),
    ],
)
def test_draws_are_told_apart_by_how_they_are_computed(params: Params, draw: Draw) -> None:
    assert packed([USUAL, USUAL | params]).kinds.tolist() == [Draw.PLAIN, draw]


@pytest.mark.parametrize(("draws", "biases"), [(39, 0), (0, 7), (41, 8)])
def test_torn_bytes_are_refused(draws: int, biases: int) -> None:
    with pytest.raises(PackingError, match="torn"):
        Sampling.from_bytes(bytes(draws), bytes(biases))


@pytest.mark.parametrize("counts", [[1, 0], [-1, 3], [3, 0]])
def test_contradicting_biases_are_refused(counts: list[int]) -> None:
    sampling = packed([USUAL | {"biases": {1: 2.0, 3: 4.0}}, USUAL])
    draws = sampling.draws.copy()
    draws["num_biases"] = counts
    with pytest.raises(PackingError, match="biases"):
        Sampling(draws, sampling.biases)


@pytest.mark.parametrize(
    ("rows", "more"),
    [(1, {"num_best": 1}), (3, {"num_best": 1}), (2, {"num_best": 0})],
    ids=["too few", "too many", "nothing to name"],
)
def test_contradicting_draws_are_refused(rows: int, more: dict[str, Any]) -> None:
    def two_rows(**fields: Any) -> PackedRows:
        read = Labels(int_array([7]), **fields)
        return PackedRows(int_array([4, 5]), 0, int_array([1, 1]), read)

    two_rows(num_best=1, sampling=packed([USUAL] * 2))
    two_rows()
    with pytest.raises(PackingError, match="draws"):
        two_rows(sampling=packed([USUAL] * rows), **more)
