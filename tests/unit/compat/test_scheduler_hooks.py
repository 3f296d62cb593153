"""Messages to a scheduler, without the scheduler."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.oneshot.budget import ForwardBudget
from sglang_prefill_ext.oneshot.policy import policy_of
from sglang_prefill_ext.oneshot.runtime import Ended, PackedRuntime
from sglang_prefill_ext.wire.packed import NO_INTS, PackedRows, int_array
from tests.unit.oneshot.jobs import IdleExecutor

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sglang_prefill_ext.compat import scheduler_hooks
    from sglang_prefill_ext.compat.messages import PackedRowsReq


def test_rows_that_contradict_the_model_fail_and_the_next_ones_are_queued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A vector is asked of a model that makes none: consistent in the front end, not here."""
    ended: list[Ended] = []
    config = PrefillOnlyConfig()
    runtime = PackedRuntime(
        IdleExecutor(), ended.extend, policy_of(config, ForwardBudget(100), launch_tokens=1)
    )
    stubs: dict[str, Any] = {
        "config_of": lambda _: config,
        "collector_of": lambda _: None,
        "set_up_runtime": lambda *_: (runtime, None, (0, 0), None),
        "packed_work": lambda *_: None,
        "STARTUP": SimpleNamespace(mark=lambda _: None, log=lambda _: None),
    }
    for name, stub in stubs.items():
        monkeypatch.setattr(scheduler_hooks, name, stub)
    mapping: dict[type, Any] = {}
    dispatcher = SimpleNamespace(_mapping=mapping)
    scheduler = SimpleNamespace(server_args=None, _request_dispatcher=dispatcher)
    scheduler_hooks.attach_runtime(None, scheduler)

    def request(rid: str, *labels: int, width: int) -> PackedRowsReq:
        rows = PackedRows(
            int_array([1]), 0, int_array([1]), int_array(labels), NO_INTS, vector_width=width
        )
        return PackedRowsReq.of(rid, rows, RequestOptions())

    mapping[PackedRowsReq](request("bad", width=-1))
    mapping[PackedRowsReq](request("good", 5, width=0))
    ((job, result),) = ended
    assert (job.rid, job.reply_to.rid, result.status) == ("bad", "bad", "failed")
    assert "PackingError" in result.message
    assert runtime.waiting_jobs == 1
