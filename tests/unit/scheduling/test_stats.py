from __future__ import annotations

import json

import pytest

from sglang_prefill_ext.scheduling.stats import Account, Accounts, ExecutionClass, RuntimeStats
from sglang_prefill_ext.wire.status import Status


def test_forwards_add_up() -> None:
    stats = RuntimeStats()
    stats.record_forward(tokens=10, rows=0, cached=0)
    stats.record_forward(tokens=5, rows=3, cached=5)
    assert (stats.forwards, stats.tokens_computed, stats.rows) == (2, 15, 3)
    assert stats.tokens_cached == 5


def test_only_answered_requests_save_tokens() -> None:
    stats = RuntimeStats()
    for status in (Status.OK, Status.OK, Status.FAILED, Status.ABORTED):
        stats.record_end(status, 6)
    assert stats.tokens_saved == 12
    assert stats.requests == {"ok": 2, "failed": 1, "aborted": 1}


def test_the_pace_is_that_of_recent_forwards() -> None:
    stats = RuntimeStats()
    assert stats.tokens_per_s == 0
    stats.record_pace(tokens=300, seconds=1.0)
    stats.record_pace(tokens=100, seconds=1.0)
    assert stats.tokens_per_s == pytest.approx(200, rel=0.1)
    assert stats.busy_s == 2.0
    for _ in range(100):
        stats.record_pace(tokens=50, seconds=1.0)
    assert stats.tokens_per_s == pytest.approx(50, rel=0.01)


def test_a_forward_too_short_to_be_timed_leaves_the_pace_alone() -> None:
    stats = RuntimeStats()
    stats.record_pace(tokens=10, seconds=0.0)
    assert stats.tokens_per_s == 0


def test_the_report_is_json() -> None:
    stats = RuntimeStats()
    stats.record_end(Status.DECLINED, 0)
    assert json.loads(json.dumps(stats.as_dict())) == {
        "forwards": 0,
        "retried_forwards": 0,
        "rows": 0,
        "tokens_computed": 0,
        "tokens_cached": 0,
        "tokens_saved": 0,
        "requests": {"declined": 1},
    }


@pytest.mark.parametrize(
    ("packed", "stock", "expected"),
    [(7, 0, ExecutionClass.ONE_SHOT), (0, 3, ExecutionClass.DECODE), (7, 3, ExecutionClass.MIXED)],
)
def test_an_iteration_is_counted_in_its_class(
    packed: int, stock: int, expected: ExecutionClass
) -> None:
    accounts = Accounts()
    accounts.record(0, 0)
    accounts.record(packed, stock)
    accounts.record(packed, stock)
    for each, account in accounts.of.items():
        assert account == (Account(2, 2 * packed, 2 * stock) if each == expected else Account())
