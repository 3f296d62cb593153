from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.wire.packed import (
    NO_INTS,
    VECTOR_AND_STATE,
    WHOLE_VECTOR,
    PackedRows,
    int_array,
)
from sglang_prefill_ext.wire.row_bytes import RowBytes
from sglang_prefill_ext.wire.sampling import Sampling
from tests.unit.wire.override_requests import orders, pack_overridden
from tests.unit.wire.strategies import PlainRequest, plain_requests, sampling_params


def carried(rows: PackedRows) -> RowBytes:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(RowBytes.of(rows)), type=RowBytes)


def assert_same(found: PackedRows, wanted: PackedRows) -> None:
    for field in fields(PackedRows):
        ours, theirs = getattr(found, field.name), getattr(wanted, field.name)
        if isinstance(theirs, Sampling):
            assert ours.draws.tobytes() == theirs.draws.tobytes()
            assert ours.biases.tobytes() == theirs.biases.tobytes()
        elif isinstance(theirs, np.ndarray) and theirs.size:
            assert ours.dtype == theirs.dtype
            assert np.array_equal(ours, theirs)
        else:
            assert np.size(ours) == np.size(theirs)
            assert isinstance(theirs, np.ndarray) or ours == theirs


@given(plain_requests(), st.booleans(), orders, st.sampled_from(["", "an adapter"]))
def test_labelled_rows_arrive_as_they_were(
    request: PlainRequest, normalised: bool, order: Sequence[int], adapter: str
) -> None:
    for rows in (request.pack(), pack_overridden(request, order)):
        sent = replace(rows, normalised=normalised, adapter=adapter)
        assert_same(carried(sent).rows(), sent)


@given(plain_requests(), st.integers(1, 3), st.data())
def test_reads_and_draws_arrive_as_they_were(
    request: PlainRequest, num_best: int, data: st.DataObject
) -> None:
    draws = [Sampling.one(**data.draw(sampling_params())) for _ in request.suffixes]
    rows = replace(
        request.pack(),
        label_ids=NO_INTS,
        label_lens=NO_INTS,
        read_lens=int_array([len(suffix) for suffix in request.suffixes]),
        prefix_reads=len(request.prefix),
        num_best=num_best,
        sampling=Sampling.joined(draws),
    )
    assert_same(carried(rows).rows(), rows)


@pytest.mark.parametrize("width", [WHOLE_VECTOR, VECTOR_AND_STATE, 7])
def test_the_width_of_vectors_can_be_made_concrete(width: int) -> None:
    rows = PackedRows(int_array([1, 2]), 0, int_array([2]), NO_INTS, NO_INTS, True, width)
    assert carried(rows).vector_width == carried(rows).rows().vector_width == width
    assert carried(rows).rows(5).vector_width == 5


def test_arrays_are_not_copied() -> None:
    sent = carried(PackedRows(int_array([1, 2]), 0, int_array([2]), int_array([3]), NO_INTS))
    tokens = sent.rows().tokens
    assert np.shares_memory(tokens, np.frombuffer(sent.tokens, dtype="<i4"))


@pytest.mark.parametrize(
    "change",
    [
        {"suffix_lens": int_array([3]).tobytes()},
        {"tokens": b"123"},
        {"draws": b"1"},
        {"overrides": b"12", "overrides_dtype": "float32", "overrides_width": 1},
    ],
    ids=str,
)
def test_inconsistent_rows_are_refused(change: dict[str, bytes]) -> None:
    whole = RowBytes.of(PackedRows(int_array([1, 2]), 0, int_array([2]), int_array([3]), NO_INTS))
    with pytest.raises(PackingError):
        msgspec.structs.replace(whole, **change).rows()
