from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.wire.arrays import from_bytes, int_array, values_from_bytes, values_to_bytes
from sglang_prefill_ext.wire.packed import PackedRows, head_of, rows_from_bytes, to_bytes
from sglang_prefill_ext.wire.read import VECTOR_AND_STATE, WHOLE_VECTOR, Labels, Read, Vectors
from sglang_prefill_ext.wire.sampling import Sampling
from tests.unit.wire.override_requests import orders, pack_overridden
from tests.unit.wire.strategies import (
    PlainRequest,
    asking,
    labels_by_read,
    plain_requests,
    sampling_params,
)


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
    assert rows.num_values == sum(map(len, request.labels))
    assert rows.num_prompt_tokens == sum(map(len, request.prompts))


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
        read=Labels(rows.read.ids),
    ),
    "a row without suffix": _with_suffix_len(0),
    "a row of negative length": _with_suffix_len(-1),
    "no labels": lambda rows: asking(rows, ids=int_array([])),
    "less than no token": lambda rows: asking(
        rows, ids=int_array([1, 2]), lens=int_array([]), num_best=-1
    ),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
@given(plain_requests())
def test_contradicting_rows_are_refused(damage: Damage, request: PlainRequest) -> None:
    rows = request.pack()
    with pytest.raises(PackingError):
        damage(rows)


def _many_reads() -> PackedRows:
    """One read in the prefix, two in the first row, one in the second."""
    return PackedRows(
        int_array([1, 2, 3, 4, 5]),
        2,
        int_array([2, 1]),
        Labels(int_array([7, 8])),
        read_lens=int_array([2, 1]),
        prefix_reads=1,
    )


def test_reads_are_those_of_the_prefix_and_then_those_of_each_row() -> None:
    rows = _many_reads()
    assert (rows.num_reads, rows.num_values) == (4, 4 * 2)
    assert rows.read_starts().tolist() == [1, 3, 4]
    ends_and_one = replace(rows, read_lens=int_array([]))
    assert ends_and_one.read_starts().tolist() == [1, 2, 3]
    assert [each.reads_row_ends for each in (rows, ends_and_one)] == [False, False]
    assert replace(ends_and_one, prefix_reads=0).reads_row_ends


@pytest.mark.parametrize(
    "change",
    [
        {"prefix_reads": -1},
        {"prefix_reads": 3},
        {"read_lens": int_array([2])},
        {"read_lens": int_array([3, 1])},
        {"read_lens": int_array([2, 0])},
    ],
    ids=str,
)
def test_contradicting_reads_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(PackingError, match="packed reads"):
        replace(_many_reads(), **change)


@pytest.mark.parametrize(
    "read", [Labels(int_array([1] * 3), int_array([1] * 3)), Vectors(2)], ids=["labels", "vectors"]
)
def test_what_is_asked_fits_the_reads(read: Read) -> None:
    with pytest.raises(PackingError, match="packed labels"):
        replace(_many_reads(), read=read)


ROWS = PackedRows(int_array([1, 2]), 0, int_array([2]), Labels(int_array([3])))


def assert_same(found: PackedRows, wanted: PackedRows) -> None:
    for field in fields(PackedRows):
        ours, theirs = getattr(found, field.name), getattr(wanted, field.name)
        if isinstance(theirs, Labels | Vectors):
            assert to_bytes(found) == to_bytes(wanted)
            assert type(ours) is type(theirs)
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
        sent = asking(replace(rows, adapter=adapter), normalised=normalised)
        found = rows_from_bytes(to_bytes(sent))
        assert_same(found, sent)
        assert found.read.normalised == normalised
        assert labels_by_read(found) == request.labels
        tokens, prefix_len, named = head_of(to_bytes(sent))
        assert (tokens.tolist(), prefix_len, named) == (
            sent.tokens.tolist(),
            sent.prefix_len,
            adapter,
        )


@given(plain_requests(), st.integers(1, 3), st.data())
def test_reads_and_draws_arrive_as_they_were(
    request: PlainRequest, num_best: int, data: st.DataObject
) -> None:
    draws = [Sampling.one(**data.draw(sampling_params())) for _ in request.suffixes]
    rows = replace(
        request.pack(),
        read=Labels(num_best=num_best, sampling=Sampling.joined(draws)),
        read_lens=int_array([len(suffix) for suffix in request.suffixes]),
        prefix_reads=len(request.prefix),
    )
    found = rows_from_bytes(to_bytes(rows))
    assert_same(found, rows)
    assert found.read.num_best == num_best
    assert found.read.sampling.draws.tobytes() == rows.read.sampling.draws.tobytes()
    assert found.read.sampling.biases.tobytes() == rows.read.sampling.biases.tobytes()


@pytest.mark.parametrize(
    ("width", "concrete"), [(WHOLE_VECTOR, 5), (VECTOR_AND_STATE, 5 + 3), (7, 7)]
)
def test_the_width_of_vectors_can_be_made_concrete(width: int, concrete: int) -> None:
    wanted = int_array([1, 0])
    sent = PackedRows(int_array([1, 2]), 0, int_array([2]), Vectors(width, wanted), int_array([2]))
    for widths, expected in ((None, width), ((5, 3), concrete)):
        found = rows_from_bytes(to_bytes(sent), widths).read
        assert isinstance(found, Vectors)
        assert (found.width, found.wanted.tolist()) == (expected, [1, 0])


@pytest.mark.parametrize(
    ("read", "widths"),
    [
        (Vectors(3), (0, 0)),
        (Vectors(WHOLE_VECTOR), (0, 0)),
        (Vectors(9), (5, 3)),
        (Labels(int_array([3])), (5, 0)),
        (Labels(num_best=1), (5, 3)),
    ],
    ids=str,
)
def test_what_a_model_does_not_make_is_not_read(read: Read, widths: tuple[int, int]) -> None:
    """Such reads would break a forward, in which others' requests may be."""
    sent = to_bytes(PackedRows(int_array([1, 2]), 0, int_array([2]), read))
    assert rows_from_bytes(sent).num_rows == 1
    with pytest.raises(PackingError, match=r"not make|do not fit"):
        rows_from_bytes(sent, widths)


def test_arrays_are_read_where_they_lie() -> None:
    rows = rows_from_bytes(to_bytes(ROWS))
    for array in (rows.tokens, rows.suffix_lens, rows.read.ids):
        assert array.base is not None
        assert not array.flags.writeable


_VALID: list[Any] = msgspec.msgpack.decode(to_bytes(ROWS))
READ = ["Labels", b"1234", b"", True, 0, [b"", b""]]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (0, b"123"),
        (2, int_array([3]).tobytes()),
        (3, ["Labels", b"123", *READ[2:]]),
        (3, [*READ[:5], [b"1", b""]]),
        (3, [*READ[:5], [b""]]),
        (3, ["Tokens", b""]),
        (3, ["Vectors", "wide", b""]),
        (4, "text"),
        (6, [b"12", "float32", 1]),
        (6, b"12345678"),
        (7, None),
    ],
    ids=str,
)
def test_inconsistent_rows_are_refused(field: int, value: Any) -> None:
    damaged = [*_VALID[:field], value, *_VALID[field + 1 :]]
    with pytest.raises(PackingError):
        rows_from_bytes(msgspec.msgpack.encode(damaged))


@pytest.mark.parametrize(
    "data", [b"", b"\x93", to_bytes(ROWS)[:-3], msgspec.msgpack.encode(_VALID[:4])]
)
def test_torn_messages_are_refused(data: bytes) -> None:
    with pytest.raises(PackingError, match="cannot be read"):
        rows_from_bytes(data)
