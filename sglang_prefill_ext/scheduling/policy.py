"""Which jobs are taken, and when: those that share the next forward, also beside decode steps.

Beside decode steps work is counted in *token equivalents*, tokens that a packed forward computes in
the same time, so that all ranks decide alike. A forward of ``n`` tokens takes ``launch_tokens + n``
of them. Pure, without a clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sglang_prefill_ext.config import Order, PrefillOnlyConfig
from sglang_prefill_ext.scheduling.budget import (
    NO_GRAPHS,
    UNLIMITED,
    ForwardBudget,
    GraphCost,
    QueueLoad,
)
from sglang_prefill_ext.scheduling.job import Job
from sglang_prefill_ext.scheduling.queue import JobQueue, order_key


@dataclass(frozen=True, slots=True)
class SchedulingPolicy:
    """Everything that decides which jobs are taken and when; the same on every rank.

    Attributes:
        budget: of one forward.
        order: of waiting jobs.
        ageing: see `order_key`.
        launch_tokens: what a launch costs whatever its size, in tokens that are computed in the
            same time, >= 0; with 0 no job joins another. Where there are graphs, of a replay.
        limits: of the queue.
        graphs: what is replayed, and what is not costs.
    """

    budget: ForwardBudget
    order: Order
    ageing: int
    launch_tokens: int
    limits: QueueLoad
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
        limits=QueueLoad(
            tokens=config.max_queued_tokens,
            rows=config.max_queued_rows,
            bytes=config.max_queued_mib << 20,
        ),
        graphs=graphs,
    )


def choose_jobs(
    queue: JobQueue, policy: SchedulingPolicy, join_tokens: int = UNLIMITED
) -> list[Job]:
    """Return the jobs whose next pieces make up the next forward; empty if none waits.

    The first in order always runs. Others join in order, up to the first that does not fit: were
    smaller ones from behind let in, nothing would bound how long a large one waits. A forward has
    one adapter, so jobs with another one than the first are passed over; they keep their places.

    A job of ``m`` tokens with ``n`` others before it, chosen or passed over, makes each of them
    wait for its tokens, ``n * m`` in all. It spares a launch to itself and to all that wait behind
    it. It joins unless the former is more, so forwards stay short under light load and grow with
    the queue. In an eager forward beside graphs tokens are free up to what its launches cost.

    Nor do jobs join where the forward would leave the graphs for less than that gains: of the
    forwards that these rules allow, the longest is taken that is replayed, as the first job alone
    is, or long enough to pay for its launches.

    Args:
        join_tokens: jobs join only up to so many tokens.
    """
    budget, launch_tokens, graphs = policy.budget, policy.launch_tokens, policy.graphs
    chosen: list[Job] = []
    tokens = reads = groups = num_taken = 0
    prefixes = set()
    replayed, eager = True, False  # all chosen jobs in one forward, and the first one alone
    for before, job in enumerate(in_turn(queue)):
        piece = job.piece
        if chosen and piece.adapter != chosen[0].piece.adapter:
            if job is queue.begun:
                break  # were it overtaken, a second divided job might begin
            continue
        is_shared = piece.prefix_key in prefixes
        added = len(piece.suffix_ids) if is_shared else piece.num_tokens
        tokens, reads = tokens + added, reads + len(piece.reads)
        groups += not is_shared
        longer = graphs.forward(tokens, launch_tokens, eager=eager)
        longer -= graphs.forward(tokens - added, launch_tokens, eager=eager)
        spared = launch_tokens + added - longer
        if chosen and (
            job.alone
            or tokens > join_tokens
            or not budget.fits(tokens, reads)
            or before * longer > spared * (len(queue) - before)
        ):
            break
        chosen.append(job)
        replayed = replayed and piece.is_replayable and graphs.hold(tokens, groups)
        eager = eager or (len(chosen) == 1 and not replayed)
        if replayed or eager or graphs.leaving_pays(tokens, launch_tokens):
            num_taken = len(chosen)
        if job.alone or job.piece is not job.pieces[-1]:
            break  # who is behind a job in the order comes after its last forward
        if piece.prefix_key is not None:
            prefixes.add(piece.prefix_key)
    return chosen[:num_taken]


def in_turn(queue: JobQueue) -> Iterator[Job]:
    """Yield jobs in the order in which forwards may take them.

    A job that takes several forwards starts only when no other one is under way, so that K/V of
    at most one prefix is held; until then the one under way has its turn.
    """
    begun = queue.begun
    for job in queue:
        if job is begun:
            begun = None
        elif job.divided and begun is not None:
            yield begun
            return
        yield job


@dataclass(slots=True)
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
    _saved: int = field(default=0, init=False)
    _waited_steps: int = field(default=0, init=False)

    @property
    def allowance(self) -> int:
        """Token equivalents of packed work that every decode step allows."""
        return int((self.slowdown - 1) * self.step_tokens)

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
        cost = self.launch_tokens + next_tokens
        self._saved = min(self._saved + self.allowance, max(self.allowance, cost))
        if self._saved < cost and self._waited_steps < self.max_wait_steps:
            self._waited_steps += 1
            return None
        payable = self._saved - self.launch_tokens
        self._saved = self._waited_steps = 0
        return payable
