from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.errors import PackingError
from sglang_prefill_ext.startup.known_answers import prompts_of
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows
from sglang_prefill_ext.wire.parts import (
    RowNumbers,
    distinct_rows,
    is_divisible,
    join_results,
    take_rows,
    whole_rows,
)
from sglang_prefill_ext.wire.read import WHOLE_VECTOR, Labels, Vectors
from sglang_prefill_ext.wire.sampling import Sampling
from sglang_prefill_ext.wire.status import Status
from tests.unit.wire.strategies import (
    Params,
    PlainRequest,
    asking,
    labels_by_read,
    plain_requests,
    sampling_params,
)


def prompts_and_labels(rows: PackedRows) -> list[tuple[list[int], list[int]]]:
    """Every row by itself."""
    ends = rows.prefix_len + np.cumsum(rows.suffix_lens)
    prefix = rows.tokens[: rows.prefix_len].tolist()
    ids, lens = rows.read.ids.tolist(), rows.read.lens_of(0, rows.num_rows)
    shared = not (isinstance(rows.read, Labels) and len(rows.read.lens))
    starts = np.cumsum(lens) - lens
    return [
        (prefix + rows.tokens[end - n : end].tolist(), ids if shared else ids[at : at + count])
        for end, n, at, count in zip(ends, rows.suffix_lens, starts, lens, strict=True)
    ]


def num_best(rows: PackedRows) -> int:
    return rows.read.num_best if isinstance(rows.read, Labels) else 0


def answer_to(rows: PackedRows, *, width: int = 0) -> PackedResult:
    """Values that depend only on their row."""
    values: list[float] = []
    for prompt, labels in prompts_and_labels(rows):
        many = width or len(labels) + 2 * num_best(rows)
        values += [float(hash((tuple(prompt), tuple(labels), n)) % 9973) for n in range(many)]
    data = np.array(values, dtype=np.float32).tobytes()
    return PackedResult(Status.OK, values=data, forwards=1, tokens_computed=len(rows.tokens))


Case: TypeAlias = tuple[PlainRequest, list[RowNumbers]]


@st.composite
def divided(draw: st.DrawFn) -> Case:
    request = draw(plain_requests())
    owners = draw(
        st.lists(st.integers(0, 2), min_size=len(request.suffixes), max_size=len(request.suffixes))
    )
    parts = [np.flatnonzero(np.array(owners) == part) for part in range(3)]
    return request, [part for part in parts if len(part)]


@given(divided())
def test_rows_that_are_taken_are_those_of_the_request(case: Case) -> None:
    request, parts = case
    rows = request.pack()
    whole = prompts_and_labels(rows)
    for numbers in parts:
        taken = take_rows(rows, numbers)
        assert prompts_and_labels(taken) == [whole[n] for n in numbers]
        assert taken.prefix_len == rows.prefix_len


@given(divided(), st.integers(0, 2))
def test_joined_answers_are_that_of_the_whole_request(case: Case, best: int) -> None:
    request, parts = case
    rows = request.pack()
    assert isinstance(rows.read, Labels)
    rows = replace(rows, read=Labels(rows.read.ids, rows.read.lens, num_best=best))
    answers = [(part, answer_to(take_rows(rows, part))) for part in parts]
    joined = join_results(rows, answers)
    assert joined.values == answer_to(rows).values
    assert joined.forwards == len(parts)


@given(divided(), st.integers(1, 5))
def test_vectors_are_joined_whatever_their_width(case: Case, width: int) -> None:
    request, parts = case
    rows = replace(request.pack(), read=Vectors(WHOLE_VECTOR))
    answers = [(part, answer_to(take_rows(rows, part), width=width)) for part in parts]
    assert join_results(rows, answers).values == answer_to(rows, width=width).values


def test_times_of_parts_are_joined() -> None:
    rows = PackedRows(int_array([1, 2]), 0, int_array([1, 1]), Labels(int_array([5])))
    value = np.ones(1, np.float32).tobytes()
    first = PackedResult(Status.OK, values=value, queue_ms=5, compute_ms=10, tokens_cached=3)
    second = PackedResult(Status.OK, values=value, queue_ms=2, compute_ms=20, tokens_cached=1)
    joined = join_results(rows, [(np.array([1]), first), (np.array([0]), second)])
    assert (joined.queue_ms, joined.compute_ms, joined.tokens_cached) == (2, 20, 1)
    assert not joined.no_cache


@pytest.mark.parametrize("without", [(True, True), (True, False), (False, False)])
def test_joined_answers_have_no_cache_if_no_part_has_one(without: tuple[bool, bool]) -> None:
    rows = PackedRows(int_array([1, 2]), 0, int_array([1, 1]), Labels(int_array([5])))
    value = np.ones(1, np.float32).tobytes()
    parts = [
        (np.array([number]), PackedResult(Status.OK, values=value, no_cache=each))
        for number, each in enumerate(without)
    ]
    assert join_results(rows, parts).no_cache is all(without)


def test_an_answer_of_another_size_is_refused() -> None:
    rows = PackedRows(int_array([1, 2]), 0, int_array([1, 1]), Labels(int_array([5])))
    good = PackedResult(Status.OK, values=np.ones(1, np.float32).tobytes())
    bad = PackedResult(Status.OK, values=np.ones(2, np.float32).tobytes())
    with pytest.raises(PackingError, match="2 values"):
        join_results(rows, [(np.array([0]), good), (np.array([1]), bad)])


def test_reads_of_a_prefix_draws_and_lone_rows_are_not_divided() -> None:
    rows = PackedRows(int_array([1, 2, 3]), 1, int_array([1, 1]), Labels(int_array([5])))
    one = Sampling.one(temperature=1.0, top_p=1.0, min_p=0.0, top_k=5, seed=1, biases={})
    drawn = Labels(num_best=1, sampling=Sampling.joined([one, one]))
    assert is_divisible(rows)
    assert not is_divisible(replace(rows, prefix_reads=1))
    assert not is_divisible(replace(rows, suffix_lens=int_array([2])))
    assert not is_divisible(replace(rows, read=drawn))


def packed(prefix: int, lens: list[int]) -> PackedRows:
    tokens = np.arange(prefix + sum(lens), dtype=np.int32)
    return PackedRows(tokens, prefix, int_array(lens), Vectors(3))


@given(st.integers(0, 20), st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_every_row_is_the_prompt_that_it_was(prefix: int, lens: list[int]) -> None:
    rows = packed(prefix, lens)
    whole = whole_rows(rows)
    assert whole.prefix_len == 0
    assert whole.suffix_lens.dtype == np.int32
    assert whole.num_prompt_tokens == rows.num_prompt_tokens
    for found, wanted in zip(prompts_of(whole), prompts_of(rows), strict=True):
        assert found.tolist() == wanted.tolist()


def test_without_a_prefix_nothing_is_copied() -> None:
    rows = packed(0, [2, 3])
    assert whole_rows(rows) is rows


def test_places_inside_prompts_are_refused() -> None:
    reads = replace(packed(2, [3]), read_lens=int_array([2]), read=Vectors(3, int_array([1, 1])))
    with pytest.raises(PackingError, match="places"):
        whole_rows(reads)


class MoreThanLabels(Labels, tag=True, array_like=True, frozen=True, eq=False, gc=False):
    """What somebody may add to `Labels`."""

    more: int = 0


def test_rows_that_are_taken_or_merged_keep_every_other_field_of_their_read() -> None:
    ones = int_array([1, 1])
    read = MoreThanLabels(int_array([7, 8]), ones, normalised=False, more=3)
    rows = PackedRows(int_array([5, 5]), 0, ones, read)
    for kept in (take_rows(rows, np.array([1])), distinct_rows(rows)[0]):
        assert isinstance(kept.read, MoreThanLabels)
        assert (kept.num_rows, kept.read.normalised, kept.read.more) == (1, False, 3)


# One or two tokens of a tiny vocabulary, so that rows repeat.
REPEATING = plain_requests(max_prefix=3, max_suffix=2, max_rows=8).map(
    lambda request: replace(
        request, suffixes=[[token % 2 for token in suffix] for suffix in request.suffixes]
    )
)


def _suffixes(rows: PackedRows) -> list[list[int]]:
    tokens = iter(rows.tokens[rows.prefix_len :].tolist())
    return [[next(tokens) for _ in range(length)] for length in rows.suffix_lens.tolist()]


def _questions(rows: PackedRows) -> list[tuple[tuple[int, ...], int]]:
    """For each value of the answer, its row's tokens and its label."""
    return [
        (tuple(suffix), label)
        for suffix, labels in zip(_suffixes(rows), labels_by_read(rows), strict=True)
        for label in labels
    ]


@given(REPEATING, st.booleans())
def test_every_value_is_found_where_the_same_question_was_answered(
    request: PlainRequest, normalised: bool
) -> None:
    rows = asking(request.pack(), normalised=normalised)
    kept, places = distinct_rows(rows)
    assert (kept.prefix_len, kept.read.normalised) == (rows.prefix_len, normalised)
    assert kept.tokens[: kept.prefix_len].tolist() == request.prefix
    answered = _questions(kept)
    found = answered if places is None else [answered[place] for place in places.tolist()]
    assert found == _questions(rows)


@given(REPEATING)
def test_each_row_is_kept_once_in_order_of_appearance(request: PlainRequest) -> None:
    kept, places = distinct_rows(request.pack())
    expected = list(dict.fromkeys(map(tuple, request.suffixes)))
    assert list(map(tuple, _suffixes(kept))) == expected
    assert (places is None) == (len(expected) == len(request.suffixes))


def test_distinct_rows_are_returned_as_they_are() -> None:
    rows = PlainRequest([1], [[2], [2, 2], [3]], [[4]] * 3, shared_labels=True).pack()
    assert distinct_rows(rows)[0] is rows


def test_a_row_answers_for_the_labels_of_its_repeats() -> None:
    request = PlainRequest([1], [[5], [6], [5]], [[10, 11], [12], [13]], shared_labels=False)
    kept, places = distinct_rows(request.pack())
    assert kept.read.ids.tolist() == [10, 11, 13, 12]
    assert kept.read.lens.tolist() == [3, 1]
    assert places is not None
    assert places.tolist() == [0, 1, 3, 2]


def test_equal_prompts_share_a_vector() -> None:
    rows = PackedRows(int_array([1, 2, 1]), 0, int_array([1, 1, 1]), Vectors(2))
    kept, places = distinct_rows(rows)
    assert (kept.tokens.tolist(), kept.num_rows, kept.num_values) == ([1, 2], 2, 4)
    assert places is not None
    assert places.tolist() == [0, 1, 2, 3, 0, 1]


def test_equal_rows_that_are_read_in_several_places_stay_as_they_are() -> None:
    read = Vectors(2, wanted=int_array([1, 0, 1, 1]))
    two = int_array([2, 2])
    rows = PackedRows(int_array([5, 6, 5, 6]), 0, two, read, read_lens=two)
    assert distinct_rows(rows) == (rows, None)


def test_equal_rows_with_labels_of_their_own_and_probable_tokens_stay_as_they_are() -> None:
    one = int_array([1, 1])
    rows = PackedRows(int_array([5, 5]), 0, one, Labels(int_array([7, 8]), one, num_best=2))
    assert distinct_rows(rows) == (rows, None)


@given(REPEATING, sampling_params())
def test_equal_rows_draw_tokens_of_their_own(request: PlainRequest, params: Params) -> None:
    sampling = Sampling.joined([Sampling.one(**params)] * len(request.suffixes))
    rows = asking(request.pack(), num_best=1, sampling=sampling)
    assert distinct_rows(rows) == (rows, None)
