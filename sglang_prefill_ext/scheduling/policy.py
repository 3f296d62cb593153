"""What a scheduler was told about queueing and about the size of forwards."""

from __future__ import annotations

from dataclasses import dataclass, field

from sglang_prefill_ext.config import Order, PrefillOnlyConfig
from sglang_prefill_ext.scheduling.admission import QueueLimits
from sglang_prefill_ext.scheduling.budget import ForwardBudget
from sglang_prefill_ext.scheduling.graph_cost import NO_GRAPHS, GraphCost
from sglang_prefill_ext.scheduling.order import order_key
from sglang_prefill_ext.scheduling.queue import JobQueue


@dataclass(frozen=True, slots=True)
class SchedulingPolicy:
    """Everything that decides which jobs are taken and when; the same on every rank.

    Attributes:
        budget: of one forward.
        order: of waiting jobs.
        ageing: see `order_key`.
        launch_tokens: see `choose_jobs`.
        limits: of the queue.
        graphs: see `choose_jobs`.
    """

    budget: ForwardBudget
    order: Order
    ageing: int
    launch_tokens: int
    limits: QueueLimits
    graphs: GraphCost = field(default=NO_GRAPHS, kw_only=True)

    def new_queue(self) -> JobQueue:
        """Return an empty queue in the policy's order."""
        return JobQueue(order_key(self.order, self.ageing))


def policy_of(
    config: PrefillOnlyConfig,
    budget: ForwardBudget,
    launch_tokens: int,
    graphs: GraphCost = NO_GRAPHS,
) -> SchedulingPolicy:
    """Return what the flags ask for; what they leave open is as measured."""
    return SchedulingPolicy(
        budget=budget,
        order=config.order,
        ageing=config.ageing,
        launch_tokens=config.launch_tokens or launch_tokens,
        limits=QueueLimits(
            tokens=config.max_queued_tokens,
            rows=config.max_queued_rows,
            bytes=config.max_queued_mib << 20,
        ),
        graphs=graphs,
    )
