"""Which waiting jobs share the next forward, and what padding to a graph costs them.

A replayed forward of ``n`` tokens costs ``launch_tokens + n``, in tokens that are computed in the
same time. One that is launched kernel by kernel costs as much, but never less than the host needs
for its launches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sglang_prefill_ext.scheduling.budget import UNLIMITED, ForwardBudget
from sglang_prefill_ext.scheduling.job import Job
from sglang_prefill_ext.scheduling.queue import JobQueue


@dataclass(frozen=True, slots=True)
class GraphCost:
    """The graphs of a scheduler, and what a forward without one costs; measured at start.

    Attributes:
        tokens: of the largest graph; 0: there is none, and no cost has a floor.
        eager_tokens: what the shortest forward costs that is launched kernel by kernel.
    """

    tokens: int = 0
    eager_tokens: int = 0

    def hold(self, tokens: int, groups: int) -> bool:
        """Whether the largest graph does."""
        return tokens <= self.tokens and groups <= groups_of(self.tokens)

    def forward(self, tokens: int, launch_tokens: int, *, eager: bool) -> int:
        """What a forward of so many tokens costs."""
        cost = launch_tokens + tokens
        return max(cost, self.eager_tokens) if eager and self.tokens else cost

    def leaving_pays(self, tokens: int, launch_tokens: int) -> bool:
        """Whether so many tokens cost less in one eager forward than in full replays.

        True from ``eager_tokens * tokens / (tokens + launch_tokens)`` on; above `eager_tokens` in
        any case.
        """
        return tokens * (self.tokens + launch_tokens) >= self.eager_tokens * self.tokens


NO_GRAPHS = GraphCost()


def groups_of(tokens: int) -> int:
    """Groups that a graph of so many tokens holds.

    Every group may add a tile that is not full, and tiles that are not there cost time.
    """
    return max(1, tokens // 16)


def choose_jobs(
    queue: JobQueue,
    budget: ForwardBudget,
    launch_tokens: int,
    join_tokens: int = UNLIMITED,
    graphs: GraphCost = NO_GRAPHS,
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
        budget: what a forward may take.
        launch_tokens: what a launch costs whatever its size, in tokens that are computed in the
            same time, >= 0; with 0 no job joins another. Where there are graphs, of a replay.
        join_tokens: jobs join only up to so many tokens.
        graphs: what is replayed, and what is not costs.
    """
    chosen: list[Job] = []
    tokens = reads = groups = num_taken = 0
    prefixes = set()
    replayed, eager = True, False  # all chosen jobs in one forward, and the first one alone
    for before, job in enumerate(_in_turn(queue)):
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


def _in_turn(queue: JobQueue) -> Iterator[Job]:
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
