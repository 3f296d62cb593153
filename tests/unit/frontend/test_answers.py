from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.frontend import answers
from sglang_prefill_ext.frontend.answers import flat_scores, label_rows, served_rows, table_rows
from sglang_prefill_ext.wire.arrays import Float32Array, int_array
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows
from sglang_prefill_ext.wire.read import Labels, Read
from sglang_prefill_ext.wire.status import Status
from tests.unit.wire.strategies import PlainRequest, plain_requests

LOGPROBS = st.floats(-80, 0, width=32)
TEMPERATURES = st.sampled_from([1e-6, 1e-3, 0.1, 0.7, 1.0, 2.0, 37.5, 1e6]) | st.integers(1, 9)


def _sglang_scores(logprobs: list[float], apply_softmax: bool, temperature: float) -> list[float]:
    """The formula of SGLang's `_convert_logprobs_to_scores`."""
    if not apply_softmax:
        return [math.exp(x) if x != float("-inf") else 0.0 for x in logprobs]
    maximum = max(logprobs)
    weights = [math.exp((x - maximum) / temperature) for x in logprobs]
    return [weight / sum(weights) for weight in weights]


def _values(
    data: st.DataObject, request: PlainRequest, lowest: float | None = None
) -> list[list[float]]:
    values = LOGPROBS if lowest is None else LOGPROBS | st.just(lowest)
    return [data.draw(st.lists(values, min_size=len(x), max_size=len(x))) for x in request.labels]


def _scores(
    values: Float32Array, read: Read, *, apply_softmax: bool, temperature: float
) -> list[list[float]]:
    flat = flat_scores(values, read, apply_softmax=apply_softmax, temperature=temperature)
    return label_rows(flat, read)


def _flat(rows: list[list[float]]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.array([value for row in rows for value in row], dtype=np.float32)


@given(plain_requests(), TEMPERATURES, st.data())
def test_softmax_scores_equal_sglangs(
    request: PlainRequest, temperature: float, data: st.DataObject
) -> None:
    logprobs = _values(data, request)
    scores = _scores(
        _flat(logprobs), request.pack().read, apply_softmax=True, temperature=temperature
    )
    expected = [_sglang_scores(row, True, temperature) for row in logprobs]
    _assert_equal(scores, expected)
    assert [sum(row) for row in scores] == pytest.approx([1.0] * len(scores))


def test_close_logprobs_keep_their_ratio_at_a_small_temperature() -> None:
    request = PlainRequest([], [[1]], [[1, 2]], shared_labels=True)
    logprobs = [-80.0, float(np.nextafter(np.float32(-80), np.float32(-81)))]
    scores = _scores(_flat([logprobs]), request.pack().read, apply_softmax=True, temperature=1e-6)
    _assert_equal(scores, [_sglang_scores(logprobs, True, 1e-6)])


def test_rows_far_apart_keep_their_scores_at_a_small_temperature() -> None:
    """Each row is centred on its own maximum: beside another's, both of its weights would be 0."""
    request = PlainRequest([], [[1], [2]], [[1, 2]] * 2, shared_labels=True)
    logprobs = [[-1.0, -1.0078125], [-30.0, -30.0078125]]
    scores = _scores(_flat(logprobs), request.pack().read, apply_softmax=True, temperature=0.01)
    _assert_equal(scores, [_sglang_scores(row, True, 0.01) for row in logprobs])


@given(plain_requests(), st.data())
def test_probabilities_equal_sglangs_also_of_impossible_labels(
    request: PlainRequest, data: st.DataObject
) -> None:
    logprobs = _values(data, request, lowest=-math.inf)
    scores = _scores(_flat(logprobs), request.pack().read, apply_softmax=False, temperature=1.0)
    _assert_equal(scores, [_sglang_scores(row, False, 1.0) for row in logprobs])


@given(plain_requests(), st.data())
def test_logprobs_come_back_unchanged(request: PlainRequest, data: st.DataObject) -> None:
    logprobs = _values(data, request, lowest=-math.inf)
    assert label_rows(_flat(logprobs), request.pack().read) == logprobs


def test_scores_are_plain_floats_that_json_can_write() -> None:
    request = PlainRequest([], [[1], [2]], [[1], [2, 3]], shared_labels=False)
    for apply_softmax in (False, True):
        scores = _scores(
            np.array([-1, -2, -3], dtype=np.float32),
            request.pack().read,
            apply_softmax=apply_softmax,
            temperature=1.0,
        )
        assert {type(score) for row in scores for score in row} == {float}


def _assert_equal(scores: list[list[float]], expected: list[list[float]]) -> None:
    assert [len(row) for row in scores] == [len(row) for row in expected]
    for row, expected_row in zip(scores, expected, strict=True):
        assert row == pytest.approx(expected_row, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize(("in_cache", "of_each"), [(0, 0), (2, 2), (3, 3), (9, 3)])
def test_what_is_cached_of_a_prefix_is_cached_of_every_row(in_cache: int, of_each: int) -> None:
    rows = PackedRows(int_array([1, 2, 3, 4, 5, 6]), 3, int_array([2, 1]), Labels(int_array([7])))
    answer = PackedResult(Status.OK, queue_ms=250, compute_ms=500, tokens_cached=in_cache)
    served = served_rows(rows, answer)
    assert served.prompt_tokens.tolist() == [5, 4]
    assert served.cached_tokens.tolist() == [of_each] * 2
    assert (served.num_prompts, served.new_tokens) == (2, 0)
    assert (served.queue_s, served.compute_s) == (0.25, 0.5)


@pytest.mark.parametrize("at_a_time", [1, 3, 4, 7, 12, 13])
def test_large_tables_become_objects_in_steps(
    monkeypatch: pytest.MonkeyPatch, at_a_time: int
) -> None:
    monkeypatch.setattr(answers, "_AT_A_TIME", at_a_time)
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert table_rows(table) == table.tolist()
