from __future__ import annotations

import json

from sglang_prefill_ext.oneshot.job import JobStatus
from sglang_prefill_ext.oneshot.stats import RuntimeStats
from tests.unit.wire.strategies import PlainRequest

ROWS = PlainRequest([1, 2, 3], [[4], [5, 6], [7]], [[8]] * 3, shared_labels=True).pack()


def test_forwards_add_up() -> None:
    stats = RuntimeStats()
    stats.record_forward(tokens=10, rows=0)
    stats.record_forward(tokens=5, rows=3)
    assert (stats.forwards, stats.tokens_computed, stats.rows) == (2, 15, 3)


def test_only_answered_requests_save_tokens() -> None:
    stats = RuntimeStats()
    for status in (JobStatus.OK, JobStatus.OK, JobStatus.FAILED, JobStatus.ABORTED):
        stats.record_end(status, ROWS)
    assert stats.tokens_saved == 2 * 2 * 3  # twice: two of three rows did without the prefix
    assert stats.requests == {"ok": 2, "failed": 1, "aborted": 1}


def test_the_report_is_json() -> None:
    stats = RuntimeStats()
    stats.record_end(JobStatus.DECLINED, ROWS)
    assert json.loads(json.dumps(stats.as_dict())) == {
        "forwards": 0,
        "rows": 0,
        "tokens_computed": 0,
        "tokens_saved": 0,
        "requests": {"declined": 1},
    }
