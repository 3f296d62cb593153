from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_prefill_ext.scheduling.admission import QueueLimits, QueueLoad, load_of, retry_after_s
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.split import split_request
from tests.unit.wire.strategies import PlainRequest, plain_requests

LOADS = st.builds(QueueLoad, *[st.integers(0, 20)] * 3)
LIMITS = st.builds(QueueLimits, *[st.integers(1, 20)] * 3)


@given(LOADS, LOADS, LIMITS)
def test_a_request_is_refused_where_any_limit_would_be_passed(
    waiting: QueueLoad, request: QueueLoad, limits: QueueLimits
) -> None:
    pairs = [
        (waiting.tokens + request.tokens, limits.tokens),
        (waiting.rows + request.rows, limits.rows),
        (waiting.bytes + request.bytes, limits.bytes),
    ]
    fits = all(after <= most for after, most in pairs) or waiting == QueueLoad()
    assert (limits.refusal(waiting, request) == "") == fits


def test_what_waits_may_reach_the_limits_and_the_first_may_exceed_them() -> None:
    limits = QueueLimits(tokens=100, rows=5, bytes=1000)
    assert limits.refusal(QueueLoad(1, 1, 1), QueueLoad(99, 4, 999)) == ""
    assert limits.refusal(QueueLoad(), QueueLoad(101, 6, 1001)) == ""


def test_a_refusal_names_what_is_full() -> None:
    limits = QueueLimits(tokens=100, rows=5, bytes=1000)
    reason = limits.refusal(QueueLoad(10, 4, 10), QueueLoad(10, 2, 10))
    assert "6 rows would wait, the limit is 5" in reason
    assert reason.endswith("Try again later.")


@given(LOADS, LOADS)
def test_what_is_taken_away_again_leaves_what_was_there(one: QueueLoad, other: QueueLoad) -> None:
    assert one + other - other == one


@given(plain_requests())
def test_the_load_is_what_the_request_holds_once_it_is_divided(plain: PlainRequest) -> None:
    rows = plain.pack()
    (piece,) = split_request(rows, ForwardBudget(10**6))
    held = (rows.tokens, rows.suffix_lens, piece.label_ids, piece.label_lens)
    assert load_of(rows) == QueueLoad(
        len(rows.tokens), rows.num_rows, sum(array.nbytes for array in held)
    )


@pytest.mark.parametrize(("rate", "seconds"), [(50.0, 2.0), (0.0, 0.0)])
def test_room_is_expected_once_what_waits_is_computed(rate: float, seconds: float) -> None:
    assert retry_after_s(QueueLoad(tokens=100), rate) == seconds
