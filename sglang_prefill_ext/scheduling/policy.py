"""Which jobs share the next forward, and in which iterations a forward runs beside decode steps.

While generations run, work is counted in *token equivalents*: tokens that a packed forward computes
in the same time. A forward of ``n`` tokens takes ``launch_tokens + n`` of them; one that no graph
can replay, where there are graphs, at least as many as the host needs for its launches. No clock is
read, so all ranks decide alike.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from sglang_prefill_ext.config import Order, PrefillOnlyConfig
from sglang_prefill_ext.layout.tokens import GroupSpan
from sglang_prefill_ext.scheduling.budget import UNLIMITED, ForwardBudget, QueueLoad, limits_of
from sglang_prefill_ext.scheduling.graph_room import NO_GRAPHS, ForwardSize, GraphCost
from sglang_prefill_ext.scheduling.job import Job
from sglang_prefill_ext.scheduling.queue import JobQueue, order_key
from sglang_prefill_ext.scheduling.split import Piece, PrefixKey

AdaptersFit: TypeAlias = Callable[[Collection[str]], bool]
"""Whether one forward can have all these LoRA adapters; an empty name is the model itself."""


def only_one(adapters: Collection[str]) -> bool:
    return len(adapters) <= 1


@dataclass(frozen=True, slots=True)
class SchedulingPolicy:
    """Everything that decides which jobs are taken and when; the same on every rank.

    Attributes:
        budget: of one forward.
        ageing: see `order_key`.
        launch_tokens: the cost of a launch apart from its tokens, in tokens that are computed in
            the same time, >= 0; with 0 no job joins another. With graphs, the cost of a replay.
        limits: of the queue.
        graphs: the size of the largest graph, and the cost of a forward without one.
        adapters_fit: true of any one adapter; the same on every rank.
    """

    budget: ForwardBudget
    order: Order
    ageing: int
    launch_tokens: int
    limits: QueueLoad
    graphs: GraphCost = field(default=NO_GRAPHS, kw_only=True)
    adapters_fit: AdaptersFit = field(default=only_one, kw_only=True)

    def cost(self, tokens: int, groups: Sequence[GroupSpan], *, replayable: bool) -> int:
        """Of a forward that computes so many tokens, in token equivalents.

        Args:
            replayable: see `Piece.is_replayable`.
        """
        graphs = self.graphs
        # Without graphs no size is added up: this runs for every waiting job.
        eager = graphs.tokens > 0 and not (replayable and graphs.hold(ForwardSize.of(groups)))
        return graphs.forward(tokens, self.launch_tokens, eager=eager)

    def equivalents(self, piece: Piece) -> int:
        """Token equivalents that a piece alone adds to a launch: its tokens, or more if no graph
        can replay it."""
        return self.alone(piece, piece.num_tokens) - self.launch_tokens

    def alone(self, piece: Piece, tokens: int) -> int:
        """Of a forward of one piece, of which `tokens` are computed, in token equivalents."""
        return self.cost(tokens, [piece.span], replayable=piece.is_replayable)

    def least_row_tokens(self, prefix_len: int) -> int:
        """Tokens that a row must find in the prefix cache to pay for a group of its own.

        Planning one takes about a sixteenth of a launch. Each one reads the shared prefix anew,
        which takes a fortieth of the time to compute it. Both were measured on a CPU.
        """
        return max(self.launch_tokens // 16, prefix_len // 32)

    def new_queue(self) -> JobQueue:
        """An empty queue in the policy's order."""
        return JobQueue(order_key(self.order, self.ageing))


def policy_of(
    config: PrefillOnlyConfig,
    budget: ForwardBudget,
    launch_tokens: int,
    graphs: GraphCost = NO_GRAPHS,
    adapters_fit: AdaptersFit = only_one,
) -> SchedulingPolicy:
    """Return the policy that the flags ask for; measured values fill in what they leave open."""
    return SchedulingPolicy(
        budget=budget,
        order=config.order,
        ageing=config.ageing,
        launch_tokens=config.launch_tokens or launch_tokens,
        limits=limits_of(config),
        graphs=graphs,
        adapters_fit=adapters_fit,
    )


def choose_jobs(
    queue: JobQueue, policy: SchedulingPolicy, join_tokens: int = UNLIMITED, *, in_flight: int = 0
) -> list[Job]:
    """Return the jobs whose next pieces make up the next forward; empty if none waits.

    The first job in order always runs. Others join in order, up to the first that does not fit: if
    smaller jobs from behind it could join, nothing would bound how long a large job waits. But
    jobs whose adapter does not fit beside those of the forward are passed over; they keep their
    places. Behind a job of several forwards that was passed over, no other such job starts: all its
    forwards would come before the first one of that job.

    A job of ``m`` tokens delays each of the ``n`` jobs before it, chosen or passed over, by its
    tokens: by ``n * m`` in all. It saves its own forward, apart from these tokens, for itself, for
    each job behind it, and for those that come while forwards in flight are computed: about as many
    as these serve. It joins unless the delay exceeds the saving, so forwards stay short under light
    load and grow with the queue. Where there are graphs, an eager forward has a least cost,
    `GraphCost.eager_tokens`, so tokens are free up to that cost, and a job that would run eagerly
    by itself saves that much.

    If the first job alone would be replayed, a forward that is too long for the graphs has to be
    worth its launches. So of the forwards that these rules allow, the longest is taken that is
    either replayed or long enough, see `GraphCost.leaving_pays`.

    Args:
        join_tokens: jobs join only while the forward has at most so many tokens.
        in_flight: number of jobs that forwards in flight serve.
    """
    forward = _Forming(policy)
    passed_divided = False
    for before, job in enumerate(in_turn(queue)):
        piece = job.piece
        added = forward.added_by(piece)
        if forward.jobs:
            if not forward.has_slot(piece.adapter):
                passed_divided = passed_divided or job.divided
                continue
            if job.alone or (passed_divided and job.divided):
                break
            if not forward.has_room(added, len(piece.reads), join_tokens):
                break
            later = len(queue) + in_flight - before  # this one included
            longer = forward.longer_by(added)
            if before * longer > (policy.alone(piece, added) - longer) * later:
                break
        forward.add(job, added)
        if job.alone or piece is not job.pieces[-1]:
            break  # jobs behind this one come after its last forward
    return forward.jobs[: forward.num_taken]


class _Forming:
    """A forward that jobs join in turn, see `choose_jobs`.

    Attributes:
        jobs: those that have joined.
        num_taken: how many of them, from the first, make the best forward.
    """

    def __init__(self, policy: SchedulingPolicy) -> None:
        self.jobs: list[Job] = []
        self.num_taken = 0
        self._policy = policy
        self._size, self._reads = ForwardSize(), 0
        self._prefixes: set[PrefixKey | None] = set()
        self._adapters: set[str] = set()
        # Whether graphs can replay all jobs together, and whether the first alone runs eagerly.
        self._replayed, self._eager = True, False

    def added_by(self, piece: Piece) -> int:
        """Tokens that are computed for a piece beside those of the jobs."""
        shared = piece.prefix_key in self._prefixes
        return len(piece.suffix_ids) if shared else piece.num_tokens

    def has_slot(self, adapter: str) -> bool:
        """Whether the forward can have this adapter, too."""
        known = self._adapters
        return adapter in known or self._policy.adapters_fit({*known, adapter})

    def has_room(self, added: int, reads: int, join_tokens: int) -> bool:
        tokens = self._size.tokens + added
        return tokens <= join_tokens and self._policy.budget.fits(tokens, self._reads + reads)

    def longer_by(self, added: int) -> int:
        """The cost of so many more tokens, in token equivalents."""
        graphs, launch_tokens = self._policy.graphs, self._policy.launch_tokens
        before = self._size.tokens
        after = graphs.forward(before + added, launch_tokens, eager=self._eager)
        return after - graphs.forward(before, launch_tokens, eager=self._eager)

    def add(self, job: Job, added: int) -> None:
        piece, graphs = job.piece, self._policy.graphs
        shared = piece.prefix_key in self._prefixes
        self._size = self._size.joined_by(piece.span, added, shared=shared)
        self._reads += len(piece.reads)
        self._adapters.add(piece.adapter)
        if piece.prefix_key is not None:
            self._prefixes.add(piece.prefix_key)
        self._replayed = self._replayed and piece.is_replayable and graphs.hold(self._size)
        self._eager = self._eager or not (self.jobs or self._replayed)
        self.jobs.append(job)
        is_best = self._replayed or self._eager
        if is_best or graphs.leaving_pays(self._size.tokens, self._policy.launch_tokens):
            self.num_taken = len(self.jobs)


def in_turn(queue: JobQueue) -> Iterator[Job]:
    """Yield jobs in the order in which forwards may take them.

    A job of several forwards starts only if no other such job has begun, so that the K/V of at most
    one prefix are held between forwards. Where a second one has its turn, the begun job runs, and
    nothing behind it.
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

    While no generation runs, a forward goes first whenever packed work waits. Forwards and stock
    batches alternate, so neither starves. While generations run, every decode step grants an
    allowance. It is saved up until it pays for the next forward, and no further. Packed work, in
    token equivalents, is therefore at most

    * ``max(allowance, cost of one forward)`` between two decode steps, and
    * ``n * allowance`` plus one forward between the first and the last of ``n + 1`` steps. This
      keeps their mean distance within `slowdown`, apart from that one forward.

    If a forward costs more than `max_wait_steps` steps allow, another bound holds instead: packed
    work waits for at most `max_wait_steps` decode steps.

    Attributes:
        step_tokens: token equivalents of one decode step, >= 1.
        slowdown: by what factor packed work may lengthen the time from step to step, > 1.
        launch_tokens: the cost of a forward apart from its tokens, >= 0.
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
        """Decide about the iteration that begins; call it once an iteration.

        Args:
            next_tokens: of the first waiting piece, see `SchedulingPolicy.equivalents`; 0 if no
                packed work waits.
            decoding: whether generations are running.

        Returns:
            None for no forward, else how many tokens it may have if other requests join it.
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
