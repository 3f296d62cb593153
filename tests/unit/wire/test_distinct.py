"""Rows without repeats against nested lists."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.wire.distinct import distinct_rows
from sglang_prefill_ext.wire.packed import PackedRows, int_array
from sglang_prefill_ext.wire.sampling import Sampling
from tests.unit.wire.strategies import Params, PlainRequest, plain_requests, sampling_params

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
    """What each value of the answer is about: a row's tokens and a label."""
    labels, lens = (array.tolist() for array in rows.labels_of(0, rows.num_rows))
    asked = iter(labels)
    return [
        (tuple(suffix), next(asked))
        for suffix, count in zip(_suffixes(rows), lens, strict=True)
        for _ in range(count)
    ]


@given(REPEATING, st.booleans())
def test_every_value_is_found_where_the_same_question_was_answered(
    request: PlainRequest, normalised: bool
) -> None:
    rows = replace(request.pack(), normalised=normalised)
    kept, places = distinct_rows(rows)
    assert (kept.prefix_len, kept.normalised) == (rows.prefix_len, normalised)
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
    assert kept.label_ids.tolist() == [10, 11, 13, 12]
    assert kept.label_lens.tolist() == [3, 1]
    assert places is not None
    assert places.tolist() == [0, 1, 3, 2]


def test_equal_prompts_share_a_vector() -> None:
    empty = int_array([])
    rows = PackedRows(int_array([1, 2, 1]), 0, int_array([1, 1, 1]), empty, empty, vector_width=2)
    kept, places = distinct_rows(rows)
    assert (kept.tokens.tolist(), kept.num_rows, kept.num_values) == ([1, 2], 2, 4)
    assert places is not None
    assert places.tolist() == [0, 1, 2, 3, 0, 1]


@given(REPEATING, sampling_params())
def test_equal_rows_draw_tokens_of_their_own(request: PlainRequest, params: Params) -> None:
    sampling = Sampling.joined([Sampling.one(**params)] * len(request.suffixes))
    rows = replace(request.pack(), num_best=1, sampling=sampling)
    assert distinct_rows(rows) == (rows, None)
