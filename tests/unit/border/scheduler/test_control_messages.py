"""What the scheduler does with a forward in flight when SGLang is about to act on a message."""

from __future__ import annotations

from typing import Any

import pytest
from sglang.srt.managers import io_struct

from sglang_prefill_ext.scheduling.runtime import PackedRuntime
from tests.unit.border.scheduler.stub_scheduler import COLLECTED, Scheduler


@pytest.mark.parametrize("message", COLLECTED, ids=lambda message: type(message).__name__)
def test_a_forward_in_flight_is_collected_before(scheduler: Scheduler, message: Any) -> None:
    scheduler._request_dispatcher(message)
    assert scheduler.answered_before == [1]


def test_weights_are_looked_at_behind_an_update(scheduler: Scheduler) -> None:
    scheduler._request_dispatcher(io_struct.UpdateWeightFromDiskReqInput(model_path=""))
    scheduler._request_dispatcher(io_struct.SlowDownReqInput(forward_sleep_time=None))
    assert scheduler.looked_at_weights_behind == [1]


def test_other_messages_do_not_wait_for_it(scheduler: Scheduler, runtime: PackedRuntime) -> None:
    scheduler._request_dispatcher(io_struct.SlowDownReqInput(forward_sleep_time=None))
    assert scheduler.answered_before == [0]
    assert runtime.in_flight == 1
