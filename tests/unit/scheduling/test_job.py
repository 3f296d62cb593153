from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.scheduling.budget import ForwardBudget, QueueLoad, load_of
from sglang_prefill_ext.scheduling.split import split_request
from sglang_prefill_ext.wire.packed import PackedResult
from sglang_prefill_ext.wire.status import Status
from tests.unit.scheduling.jobs import job_of, job_of_rows, request
from tests.unit.wire.override_requests import orders, pack_overridden
from tests.unit.wire.strategies import PlainRequest, plain_requests


@given(plain_requests(), st.integers(5, 20), st.data())
def test_remaining_tokens_are_those_of_the_pieces_not_launched(
    plain: PlainRequest, budget: int, data: st.DataObject
) -> None:
    job = job_of(plain, budget)
    assert job.remaining_tokens == plain.num_tokens
    job.next_piece = data.draw(st.integers(0, len(job.pieces)))
    done = sum(piece.num_tokens for piece in job.pieces[: job.next_piece])
    assert job.remaining_tokens == job.load.tokens == plain.num_tokens - done
    assert job.launched == (job.next_piece == len(job.pieces)) == (job.remaining_tokens == 0)
    assert job.divided == (len(job.pieces) > 1)
    if not job.launched:
        assert job.piece is job.pieces[job.next_piece]


def test_what_the_cache_has_is_not_still_to_be_computed() -> None:
    plain = request([1, 2, 3], [4, 4], [5, 5])
    whole = job_of(plain, budget=7)
    whole.cached_tokens = 2
    assert (len(whole.pieces), whole.remaining_tokens, whole.load.tokens) == (1, 5, 7)
    large = job_of_rows(plain.pack(), ForwardBudget(4), cached=2)
    assert (len(large.pieces), large.remaining_tokens, large.load.tokens) == (2, 5, 5)
    rows = job_of(plain, budget=7, rows_seen=np.array([0, 4]))
    assert (rows.remaining_tokens, rows.load.tokens) == (6, 7)
    for job in (whole, rows, large):
        job.next_piece = 1
        rest = sum(piece.num_tokens for piece in job.pieces[1:])
        assert job.remaining_tokens == job.load.tokens == rest


def test_rows_and_bytes_wait_until_the_last_piece() -> None:
    job = job_of(request([1, 2, 3], [4], [5]), budget=4)
    job.next_piece = 1
    arrived = load_of(job.rows)
    assert (job.load.rows, job.load.bytes) == (arrived.rows, arrived.bytes)


def test_prefixes_are_equal_by_tokens_and_adapter() -> None:
    rows = request([1, 2, 3], [4], [5])
    job = job_of(replace(rows, adapter="a"))
    others = [
        replace(rows, adapter="a", suffixes=[[6]] * 2),
        replace(rows, adapter="b"),
        rows,
        replace(rows, adapter="a", prefix=[1, 2]),
        replace(rows, adapter="a", prefix=[1, 2, 4]),
    ]
    assert [job.has_prefix_of(job_of(other)) for other in others] == [True] + [False] * 4


def test_a_restart_forgets_all_but_what_was_spent() -> None:
    job = job_of(request([1, 2, 3], [4], [5]), budget=4)
    job.next_piece, job.tokens_computed, job.forwards, job.tokens_cached = 1, 4, 1, 2
    job.values.append(np.zeros(1, dtype=np.float32))
    job.restart()
    assert (job.next_piece, job.values, job.attempt) == (0, [], 1)
    assert (job.tokens_computed, job.forwards, job.tokens_cached) == (4, 1, 0)


def test_the_answer_joins_the_pieces_and_repeats_what_was_left_out() -> None:
    job = job_of(request([1, 2, 3], [4], [5]), budget=4)
    job.values += [np.array([0.5], dtype=np.float32)]
    assert not job.completed
    job.values += [np.array([0.25], dtype=np.float32)]
    assert job.completed
    assert job.answer().tolist() == [0.5, 0.25]
    job.value_places = np.array([1, 0, 1])
    assert job.answer().tolist() == [0.25, 0.5, 0.25]


def test_jobs_are_told_apart_by_identity() -> None:
    plain = request()
    assert job_of(plain) != job_of(plain)


def test_a_result_without_values_is_empty() -> None:
    result = PackedResult(Status.DECLINED, "why")
    assert (result.values, result.forwards, result.tokens_computed) == (b"", 0, 0)


@given(plain_requests(), orders)
def test_the_load_is_what_the_request_holds_once_it_is_divided(
    plain: PlainRequest, order: list[int]
) -> None:
    rows = pack_overridden(plain, order)
    (piece,) = split_request(rows, ForwardBudget(10**6))
    reads = piece.reads
    held = (rows.tokens, rows.suffix_lens, rows.overrides, reads.label_ids, reads.lens)
    assert load_of(rows) == QueueLoad(
        len(rows.tokens), rows.num_rows, sum(array.nbytes for array in held)
    )
