from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.wire.packed import (
    PackedRows,
    from_bytes,
    int_array,
    values_from_bytes,
    values_to_bytes,
)
from tests.unit.wire.strategies import PlainRequest, plain_requests

ARRAYS = ("tokens", "suffix_lens", "label_ids", "label_lens")


@given(plain_requests())
def test_a_round_trip_through_bytes_keeps_every_row(request: PlainRequest) -> None:
    sent = request.pack()
    arrays = {name: from_bytes(getattr(sent, name).tobytes()) for name in ARRAYS}
    received = PackedRows(
        arrays["tokens"],
        sent.prefix_len,
        arrays["suffix_lens"],
        arrays["label_ids"],
        arrays["label_lens"],
    )
    for name in ARRAYS:
        assert getattr(received, name).tolist() == getattr(sent, name).tolist()
        assert getattr(received, name).dtype == np.int32


def test_reading_copies_nothing_and_cannot_be_written_to() -> None:
    for read, data in ((from_bytes, b"\1\0\0\0"), (values_from_bytes, b"\0\0\x80?")):
        array = read(data)
        assert array.tolist() == [1]
        assert np.shares_memory(array, np.frombuffer(data, dtype=np.uint8))
        assert not array.flags.writeable


def test_bytes_are_little_endian() -> None:
    assert int_array([1, -2]).tobytes() == b"\1\0\0\0\xfe\xff\xff\xff"
    assert values_to_bytes(np.array([1.0], dtype=">f4")) == b"\0\0\x80?"


@pytest.mark.parametrize("read", [from_bytes, values_from_bytes])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_torn_bytes_are_refused(read: Callable[[bytes], object], size: int) -> None:
    with pytest.raises(PackingError, match=f"{size} bytes"):
        read(bytes(size))


@given(st.lists(st.floats(width=32)), st.integers(1, 3))
def test_values_survive_bit_for_bit_also_from_strided_memory(
    values: list[float], stride: int
) -> None:
    spread = np.zeros(len(values) * stride, dtype=np.float32)
    spread[::stride] = values
    received = values_from_bytes(values_to_bytes(spread[::stride]))
    assert received.tobytes() == np.array(values, dtype=np.float32).tobytes()


@given(plain_requests())
def test_totals_equal_those_of_separate_prompts(request: PlainRequest) -> None:
    rows = request.pack()
    assert rows.num_rows == len(request.suffixes)
    assert rows.shared_labels == request.shared_labels
    assert rows.num_values == sum(map(len, request.labels))
    assert rows.num_prompt_tokens == sum(map(len, request.prompts))


@given(plain_requests(), st.data())
def test_labels_of_any_range_of_rows(request: PlainRequest, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(request.suffixes)))
    last = data.draw(st.integers(first, len(request.suffixes)))
    expected = request.labels[first:last]
    label_ids, label_lens = request.pack().labels_of(first, last)
    assert label_lens.tolist() == [len(labels) for labels in expected]
    assert label_ids.tolist() == [label for labels in expected for label in labels]
    assert label_ids.dtype == label_lens.dtype == np.int32


Damage = Callable[[PackedRows], PackedRows]


def _with_suffix_len(length: int) -> Damage:
    """Give the first row this many suffix tokens, with a token count that adds up."""

    def damage(rows: PackedRows) -> PackedRows:
        lens = int_array([length, *rows.suffix_lens[1:]])
        total = rows.prefix_len + int(lens.sum())
        return replace(rows, suffix_lens=lens, tokens=int_array([0] * total))

    return damage


DAMAGES: dict[str, Damage] = {
    "a token too many": lambda rows: replace(rows, tokens=np.append(rows.tokens, rows.tokens[:1])),
    "a token too few": lambda rows: replace(rows, tokens=rows.tokens[:-1]),
    "longer prefix": lambda rows: replace(rows, prefix_len=rows.prefix_len + 1),
    "shorter prefix": lambda rows: replace(rows, prefix_len=rows.prefix_len - 1),
    "negative prefix": lambda rows: replace(
        rows, prefix_len=-1, tokens=rows.tokens[rows.prefix_len + 1 :]
    ),
    "no rows": lambda rows: replace(
        rows,
        suffix_lens=int_array([]),
        tokens=rows.tokens[: rows.prefix_len],
        label_lens=int_array([]),
    ),
    "a row without suffix": _with_suffix_len(0),
    "a row of negative length": _with_suffix_len(-1),
    "no labels": lambda rows: replace(rows, label_ids=int_array([])),
}

OWN_LABEL_DAMAGES: dict[str, Damage] = {
    "a label too many": lambda rows: replace(rows, label_ids=np.append(rows.label_ids, 1)),
    "a label too few": lambda rows: replace(rows, label_ids=rows.label_ids[:-1]),
    "a count too many": lambda rows: replace(
        rows, label_lens=np.append(rows.label_lens, 1), label_ids=np.append(rows.label_ids, 1)
    ),
    "a count too few": lambda rows: replace(
        rows, label_lens=rows.label_lens[:-1], label_ids=rows.label_ids[: -rows.label_lens[-1]]
    ),
    "a row without labels": lambda rows: replace(
        rows,
        label_lens=int_array([0, *rows.label_lens[1:]]),
        label_ids=rows.label_ids[rows.label_lens[0] :],
    ),
    "a negative count": lambda rows: replace(
        rows, label_lens=int_array([-1, int(rows.label_lens[:2].sum()) + 1, *rows.label_lens[2:]])
    ),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
@given(plain_requests())
def test_contradicting_rows_are_refused(damage: Damage, request: PlainRequest) -> None:
    rows = request.pack()
    with pytest.raises(PackingError):
        damage(rows)


@pytest.mark.parametrize("damage", OWN_LABEL_DAMAGES.values(), ids=OWN_LABEL_DAMAGES.keys())
@given(plain_requests())
def test_contradicting_labels_are_refused(damage: Damage, request: PlainRequest) -> None:
    two_rows = replace(
        request,
        suffixes=[*request.suffixes, [1]],
        labels=[*request.labels, [2]],
        shared_labels=False,
    )
    rows = two_rows.pack()
    with pytest.raises(PackingError):
        damage(rows)


def _many_reads() -> PackedRows:
    """One read in the prefix, two in the first row, one in the second."""
    return PackedRows(
        int_array([1, 2, 3, 4, 5]),
        2,
        int_array([2, 1]),
        int_array([7, 8]),
        int_array([]),
        read_lens=int_array([2, 1]),
        prefix_reads=1,
    )


def test_reads_are_those_of_the_prefix_and_then_those_of_each_row() -> None:
    rows = _many_reads()
    assert (rows.num_reads, rows.num_values) == (4, 4 * 2)
    best = replace(rows, num_best=3)
    assert (best.values_per_read, best.num_values) == (2 + 6, 4 * 8)
    assert rows.read_starts().tolist() == [1, 3, 4]
    ends_and_one = replace(rows, read_lens=int_array([]))
    assert ends_and_one.read_starts().tolist() == [1, 2, 3]
    assert [each.reads_row_ends for each in (rows, ends_and_one)] == [False, False]
    assert replace(ends_and_one, prefix_reads=0).reads_row_ends


def test_reads_between_others_may_have_no_labels() -> None:
    rows = replace(_many_reads(), label_lens=int_array([0, 2, 0, 0]))
    assert rows.num_values == 2
    assert rows.labels_of(1, 3)[1].tolist() == [2, 0]
    with pytest.raises(PackingError, match="packed labels"):  # nothing is asked at all
        replace(rows, label_lens=int_array([0] * 4), label_ids=int_array([]))


def test_rows_whose_most_probable_token_is_read_need_no_labels() -> None:
    rows = PlainRequest([1], [[2], [3]], [[7], [8]], shared_labels=False).pack()
    some = replace(rows, label_lens=int_array([2, 0]), num_best=1)
    assert some.num_values == 2 + 2 * 2
    with pytest.raises(PackingError, match="packed labels"):
        replace(some, num_best=0)


@pytest.mark.parametrize(
    "change",
    [
        {"prefix_reads": -1},
        {"prefix_reads": 3},
        {"read_lens": int_array([2])},
        {"read_lens": int_array([3, 1])},
        {"read_lens": int_array([2, 0])},
        {"num_best": -1},
    ],
    ids=str,
)
def test_contradicting_reads_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(PackingError, match="packed reads"):
        replace(_many_reads(), **change)


def test_rows_of_vectors_have_no_labels() -> None:
    empty = int_array([])
    rows = PackedRows(int_array([1, 2, 3]), 1, int_array([1, 1]), empty, empty, vector_width=5)
    assert (rows.num_values, rows.values_per_read) == (10, 5)
    ids, counts = rows.labels_of(0, 2)
    assert (ids.tolist(), counts.tolist()) == ([], [5, 5])
    with pytest.raises(PackingError, match="labels"):
        replace(rows, label_ids=int_array([7]))
    with pytest.raises(PackingError, match="labels"):
        replace(rows, vector_width=0)


def test_vectors_of_some_reads_are_counted_by_read() -> None:
    rows = PackedRows(
        int_array([1, 2, 3, 4]),
        0,
        int_array([3, 1]),
        int_array([]),
        int_array([1, 0, 1]),
        vector_width=5,
        read_lens=int_array([2, 1]),
    )
    assert (rows.num_reads, rows.num_values) == (3, 10)
    for first, last, wanted in ((0, 3, [5, 0, 5]), (1, 2, [0])):
        ids, counts = rows.labels_of(first, last)
        assert (ids.tolist(), counts.tolist(), counts.dtype) == ([], wanted, np.int32)
    for damage in ([1, 1], [1, 2, 0], [0, 0, 0], []):
        with pytest.raises(PackingError, match="labels"):
            replace(rows, label_lens=int_array(damage))
    with pytest.raises(PackingError, match="labels"):
        replace(rows, read_lens=int_array([]), label_lens=int_array([1, 1]))
