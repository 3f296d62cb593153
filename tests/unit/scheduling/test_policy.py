from __future__ import annotations

from sglang_prefill_ext.config import Order, PrefillOnlyConfig
from sglang_prefill_ext.scheduling.admission import QueueLimits
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.policy import SchedulingPolicy, policy_of


def test_every_flag_reaches_its_place() -> None:
    config = PrefillOnlyConfig(
        order=Order.DEADLINE,
        ageing=12,
        launch_tokens=13,
        max_queued_tokens=14,
        max_queued_rows=15,
        max_queued_mib=16,
    )
    assert policy_of(config, ForwardBudget(11), launch_tokens=99) == SchedulingPolicy(
        budget=ForwardBudget(11),
        order=Order.DEADLINE,
        ageing=12,
        launch_tokens=13,
        limits=QueueLimits(tokens=14, rows=15, bytes=16 * 1024 * 1024),
    )


def test_what_a_launch_costs_is_measured_unless_given() -> None:
    assert policy_of(PrefillOnlyConfig(), ForwardBudget(11), launch_tokens=99).launch_tokens == 99
