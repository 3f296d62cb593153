"""Which waiting jobs share the next forward: a pure function of the queue."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_prefill_ext.oneshot.budget import UNLIMITED, ForwardBudget
from sglang_prefill_ext.oneshot.job import Job
from sglang_prefill_ext.oneshot.queue import JobQueue


def choose_jobs(
    queue: JobQueue, budget: ForwardBudget, launch_tokens: int, join_tokens: int = UNLIMITED
) -> list[Job]:
    """Return the jobs whose next pieces make up the next forward; empty if none waits.

    The first in order always runs. Others join in order, up to the first that does not fit: were
    smaller ones from behind let in, nothing would bound how long a large one waits. A forward has
    one adapter, so jobs with another one than the first are passed over; they keep their places.

    A job of ``m`` tokens with ``n`` others before it, aboard or passed over, makes each of them
    wait for its tokens, ``n * m`` in all. It spares a launch to itself and to all that wait behind
    it. It joins unless the former is more, so forwards stay short under light load and grow with
    the queue.

    Args:
        budget: what a forward may take.
        launch_tokens: what a launch costs whatever its size, in tokens that are computed in the
            same time, >= 0; with 0 no job joins another.
        join_tokens: jobs join only up to so many tokens.
    """
    chosen: list[Job] = []
    tokens = reads = 0
    prefixes = set()
    for before, job in enumerate(_in_turn(queue)):
        piece = job.piece
        if chosen and piece.adapter != chosen[0].piece.adapter:
            if job is queue.begun:
                break  # were it overtaken, a second divided job might begin
            continue
        is_shared = piece.prefix_key in prefixes
        added = len(piece.suffix_ids) if is_shared else piece.num_tokens
        tokens, reads = tokens + added, reads + piece.num_reads
        if chosen and (
            job.alone
            or tokens > join_tokens
            or not budget.fits(tokens, reads)
            or before * added > launch_tokens * (len(queue) - before)
        ):
            break
        chosen.append(job)
        if job.alone or job.piece is not job.pieces[-1]:
            break  # who is behind a job in the order comes after its last forward
        if piece.prefix_key is not None:
            prefixes.add(piece.prefix_key)
    return chosen


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
