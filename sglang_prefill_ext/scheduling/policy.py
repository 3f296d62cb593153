"""Which jobs are taken, and when: what a scheduler was told, and forwards beside decode steps.

Beside decode steps work is counted in *token equivalents*, tokens that a packed forward computes in
the same time, so that all ranks decide alike. A forward of ``n`` tokens takes ``launch_tokens + n``
of them. Pure, without a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sglang_prefill_ext.config import Order, PrefillOnlyConfig
from sglang_prefill_ext.scheduling.budget import UNLIMITED, ForwardBudget
from sglang_prefill_ext.scheduling.coalesce import NO_GRAPHS, GraphCost
from sglang_prefill_ext.scheduling.queue import JobQueue, QueueLimits, order_key


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


@dataclass(frozen=True, slots=True)
class DecodeShare:
    """How much packed work running decode requests put up with.

    Attributes:
        step_tokens: token equivalents of one decode step, >= 1.
        slowdown: decode steps may take so many times as long as without packed work, > 1.
        launch_tokens: what a forward costs besides its tokens, >= 0.
        max_wait_steps: decode steps after which waiting packed work runs in any case, >= 0.
    """

    step_tokens: int
    slowdown: float
    launch_tokens: int
    max_wait_steps: int

    @property
    def allowance(self) -> int:
        """Token equivalents of packed work that every decode step allows."""
        return int((self.slowdown - 1) * self.step_tokens)


class IterationPolicy:
    """Decides before every stock batch whether a packed forward goes first.

    Without running decode requests one goes first whenever packed work waits; one forward, one
    stock batch, so that neither starves. With them, every decode step grants an allowance, which
    is saved up until it pays for the next forward and no further. Of packed work, in token
    equivalents, there are therefore at most

    * ``max(allowance, cost of one forward)`` between two decode steps, and
    * ``n * allowance`` plus one forward between the first and the last of ``n + 1`` steps, which
      keeps their mean distance within `slowdown`, up to that one forward,

    unless a forward costs more than `max_wait_steps` steps allow. Then the other bound holds:
    packed work waits for `max_wait_steps` decode steps at most.
    """

    def __init__(self, share: DecodeShare) -> None:
        self.share = share
        self._saved = 0
        self._waited_steps = 0

    def join_tokens(self, next_tokens: int, *, decoding: bool) -> int | None:
        """Decide about the iteration that begins; call it once each.

        Args:
            next_tokens: of the first waiting piece; 0 if no packed work waits.
            decoding: whether the stock batch that follows is a decode step.

        Returns:
            Up to how many tokens other requests may join the forward, or None for no forward.
        """
        if not decoding or not next_tokens:
            self._saved = self._waited_steps = 0
            return UNLIMITED if next_tokens else None
        cost = self.share.launch_tokens + next_tokens
        allowance = self.share.allowance
        self._saved = min(self._saved + allowance, max(allowance, cost))
        if self._saved < cost and self._waited_steps < self.share.max_wait_steps:
            self._waited_steps += 1
            return None
        payable = self._saved - self.share.launch_tokens
        self._saved = self._waited_steps = 0
        return payable
