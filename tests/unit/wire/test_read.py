"""Reads and their answers are compared with one list per read."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.read import Labels, Vectors
from sglang_prefill_ext.wire.reads import Best, LabelKind, Reads, answer_order, values_per_read
from sglang_prefill_ext.wire.sampling import Draw, Sampling
from tests.unit.wire.strategies import VOCAB, Params, sampling_params

Question: TypeAlias = tuple[list[int], LabelKind, bytes]
"""What is asked at a read: labels, their kind, and how a token is drawn."""

LABELS = st.lists(st.integers(0, VOCAB - 1), max_size=3)


@dataclass(frozen=True)
class PlainReads:
    """Rows of reads.

    Attributes:
        rows: the labels of every read of every row.
        draws: of every row; empty where nothing is drawn.
    """

    rows: list[list[list[int]]]
    shared: bool
    normalised: bool
    num_best: int
    draws: list[Params]

    @property
    def labels(self) -> list[list[int]]:
        return [labels for row in self.rows for labels in row]

    @property
    def bounds(self) -> list[int]:
        """The first read of every row, and the total number of reads."""
        return list(accumulate(map(len, self.rows), initial=0))

    def pack(self) -> Labels:
        sent = self.labels[:1] if self.shared else self.labels
        return Labels(
            int_array([label for labels in sent for label in labels]),
            int_array([] if self.shared else list(map(len, sent))),
            self.normalised,
            self.num_best,
            Sampling.joined(Sampling.one(**draw) for draw in self.draws),
        )

    def questions(self) -> list[Question]:
        found = []
        for number, row in enumerate(self.rows):
            usual = LabelKind(self.num_best, self.normalised, Draw.NONE)
            found += [(labels, usual, b"") for labels in row]
            if self.draws:
                one = Sampling.one(**self.draws[number])
                kind = usual._replace(draw=Draw(int(one.kinds[0])))
                found[-1] = (row[-1], kind, one.draws.tobytes() + one.biases.tobytes())
        return found

    def part(self, first: int, last: int) -> Reads:
        """Rows from `first` (included) to `last` (excluded)."""
        bounds = self.bounds
        ends = np.array(bounds[first + 1 : last + 1], dtype=np.int64) - bounds[first] - 1
        return self.pack().part(bounds[first], bounds[last], slice(first, last), ends)


@st.composite
def plain_reads(draw: st.DrawFn) -> PlainReads:
    lens = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    shared, num_best = draw(st.booleans()), draw(st.integers(0, 3))
    if shared:
        own = draw(LABELS)
        rows = [[own] * count for count in lens]
    else:
        rows = [[draw(LABELS) for _ in range(count)] for count in lens]
    if not num_best and not any(any(row) for row in rows):
        num_best = 1
    is_drawn = num_best > 0 and draw(st.booleans())
    draws = [draw(sampling_params()) for _ in rows if is_drawn]
    return PlainReads(rows, shared, draw(st.booleans()), num_best, draws)


def questions(reads: Reads) -> list[Question]:
    labels = np.split(reads.label_ids, np.cumsum(reads.lens)[:-1])
    found: list[Question] = []
    drawn = 0
    for ids, number in zip(labels, reads.kinds.tolist(), strict=True):
        kind, how = LabelKind.of(number), b""
        if kind.draw is not Draw.NONE:
            assert reads.sampling is not None
            one = reads.sampling[drawn : drawn + 1]
            how, drawn = one.draws.tobytes() + one.biases.tobytes(), drawn + 1
        found.append((ids.tolist(), kind, how))
    assert drawn == (0 if reads.sampling is None else len(reads.sampling))
    return found


@given(plain_reads(), st.data())
def test_a_part_asks_what_its_reads_ask(plain: PlainReads, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(plain.rows) - 1))
    last = data.draw(st.integers(first + 1, len(plain.rows)))
    part, bounds = plain.part(first, last), plain.bounds
    assert questions(part) == plain.questions()[bounds[first] : bounds[last]]
    assert part.label_ids.dtype == part.lens.dtype == np.int32


@given(st.lists(plain_reads(), min_size=1, max_size=4), st.data())
def test_joined_parts_ask_what_each_of_them_asks(
    plain: list[PlainReads], data: st.DataObject
) -> None:
    parts = [each.part(0, len(each.rows)) for each in plain]
    joined = Reads.joined(parts)
    wanted = [question for each in plain for question in each.questions()]
    assert questions(joined) == wanted
    assert len(joined) == sum(map(len, parts))
    assert joined.num_values == sum(part.num_values for part in parts)
    chosen = np.array([data.draw(st.booleans()) for _ in wanted], dtype=np.bool_)
    if chosen.any():
        kept = [each for each, is_kept in zip(wanted, chosen, strict=True) if is_kept]
        assert questions(joined[chosen]) == kept


@given(plain_reads())
def test_values_are_counted_alike_everywhere(plain: PlainReads) -> None:
    each = [values_per_read(len(labels), plain.num_best) for labels in plain.labels]
    part = plain.part(0, len(plain.rows))
    assert part.value_lens.tolist() == each
    assert plain.pack().num_values(len(each)) == part.num_values == sum(each)
    lens = plain.pack().lens_of(0, len(each))
    assert lens.tolist() == list(map(len, plain.labels))


@given(st.lists(plain_reads(), min_size=1, max_size=4))
def test_every_read_with_values_is_of_one_kind(plain: list[PlainReads]) -> None:
    joined = Reads.joined([each.part(0, len(each.rows)) for each in plain])
    found: list[LabelKind | None] = [None] * len(joined)
    for kind, chosen in joined.by_kind():
        for number in np.flatnonzero(chosen):
            assert found[number] is None
            found[number] = kind
    for kind, (labels, wanted, _) in zip(found, questions(joined), strict=True):
        assert kind == (wanted if labels or wanted.num_best else None)


@given(st.integers(0, 200), st.booleans(), st.sampled_from(Draw))
def test_a_kind_survives_as_a_number(num_best: int, normalised: bool, draw: Draw) -> None:
    kind = LabelKind(num_best, normalised, draw)
    assert LabelKind.of(kind.number) == kind


@given(plain_reads().filter(lambda plain: not plain.num_best))
def test_an_answer_of_labels_is_divided_among_reads(plain: PlainReads) -> None:
    values = np.array([label for labels in plain.labels for label in labels], np.float32)
    found = plain.pack().by_read(values)
    assert [own.tolist() for own in found] == [labels for labels in plain.labels if labels]
    assert isinstance(found, np.ndarray) == plain.shared


@given(st.lists(LABELS, min_size=1, max_size=5), st.integers(0, 3))
def test_labels_come_before_the_best_tokens_of_their_read(
    labels: list[list[int]], num_best: int
) -> None:
    more = values_per_read(0, num_best)
    flat = [f"label {label}" for own in labels for label in own]
    flat += [f"best {read}.{number}" for read in range(len(labels)) for number in range(more)]
    order = answer_order(int_array(list(map(len, labels))), more)
    wanted = []
    for read, own in enumerate(labels):
        wanted += [f"label {label}" for label in own]
        wanted += [f"best {read}.{number}" for number in range(more)]
    assert [flat[place] for place in order.tolist()] == wanted


@given(st.integers(1, 4), st.integers(0, 4))
def test_best_tokens_are_taken_apart_as_they_were_joined(reads: int, num_best: int) -> None:
    table = np.arange(reads * 2 * num_best).reshape(reads, -1)
    best = Best.of(table)
    assert np.concatenate(best, axis=1).tolist() == table.tolist()
    tops = max(0, num_best - 1)
    assert [part.shape[1] for part in best] == [min(1, num_best)] * 2 + [tops] * 2


@pytest.mark.parametrize(
    ("ids", "lens", "num_best", "fits"),
    [
        ([1], [], 0, True),
        ([1, 2, 3], [1, 2], 0, True),
        ([], [], 1, True),
        ([1], [1, 0], 1, True),
        ([], [], 0, False),
        ([1], [], -1, False),
        ([1, 2, 3], [1, 1], 0, False),
        ([1], [1, 1], 0, False),
        ([1], [1], 0, False),
        ([1, 2, 3], [1, 1, 1], 0, False),
        ([1], [1, 0], 0, False),
        ([1], [-1, 2], 0, False),
    ],
)
def test_labels_that_fit_two_rows_are_told_from_others(
    ids: list[int], lens: list[int], num_best: int, fits: bool
) -> None:
    labels = Labels(int_array(ids), int_array(lens), num_best=num_best)
    if fits:
        labels.check(2, 2, row_ends=True)
    else:
        with pytest.raises(PackingError, match="packed labels"):
            labels.check(2, 2, row_ends=True)


def test_reads_between_others_may_have_no_labels() -> None:
    Labels(int_array([1]), int_array([1, 0])).check(2, 1, row_ends=False)
    with pytest.raises(PackingError, match="packed labels"):  # nothing is asked at all
        Labels(int_array([]), int_array([0, 0])).check(2, 1, row_ends=False)


def test_vectors_of_some_reads_are_counted_by_read() -> None:
    vectors = Vectors(5, int_array([1, 0, 1]))
    vectors.check(3, 2, row_ends=False)
    assert vectors.num_values(3) == 10
    for first, last, wanted in ((0, 3, [5, 0, 5]), (1, 2, [0])):
        part = vectors.part(first, last, slice(0, 0), np.empty(0, np.int64))
        assert (part.label_ids.tolist(), part.lens.tolist()) == ([], wanted)
        assert (part.num_values, part.lens.dtype) == (sum(wanted), np.int32)
    for damage in ([1, 1], [1, 2, 0], [1, -1, 0], [0, 0, 0], []):
        with pytest.raises(PackingError, match="labels"):
            Vectors(5, int_array(damage)).check(3, 2, row_ends=False)


def test_every_row_has_a_vector_at_its_end() -> None:
    vectors = Vectors(5)
    vectors.check(2, 2, row_ends=True)
    assert (vectors.num_values(2), vectors.lens_of(0, 2).tolist()) == (10, [5, 5])
    assert (vectors.lens_of(1, 2).tolist(), vectors.lens_of(1, 2).dtype) == ([5], np.int32)
    assert vectors.by_read(np.arange(10)).tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    for damage in (Vectors(0), Vectors(5, int_array([1, 1]))):
        with pytest.raises(PackingError, match="labels"):
            damage.check(2, 2, row_ends=True)
