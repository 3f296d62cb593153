"""The jobs that wait, and the order in which they are served.

Time is counted in *processed tokens*, the tokens of all forwards launched so far. A job's key
depends on nothing that changes while it waits, so a queue that is sorted once stays sorted.

**srpt** is shortest remaining processing time first, with ageing. ``mark`` is the processed tokens
when the job came, ``r`` the tokens that it still needs, less those that the prefix cache had then,
and ``w`` the ageing::

    key = mark + w * r

The key is the point in time by which the job would be done if it ran `w` times slower than alone.
Small jobs overtake large ones; the longer a job has waited, the smaller a job must be to overtake
it.

*Bound.* Let ``L`` be the most tokens that ever wait (the queue's limit) and ``B`` the tokens of the
largest forward. A job's last forward starts before ``w * r + B + L`` further tokens are processed.
Where requests name adapters, of which ``a`` have jobs that wait, it is ``w * r + a * B + L``.
Proof: once ``mark + w * r`` tokens are processed, which one forward can overshoot by less than
``B``, every job that comes later has a larger key and is launched after this one, as forwards take
jobs in order and stop at the first that does not fit. Only the jobs that wait at that moment can
still run before it, ``L`` tokens at most, this job's among them. A forward passes over jobs whose
adapters do not fit beside its own and so may take some from behind this job, but only once all
before it with the adapter of its first job are chosen: at most one forward an adapter, ``B`` tokens
each. First come, first served waits up to ``L``, so a long job pays at most `w` times its own
length for the order.

Failed forwards are not counted; their jobs are computed again, each once.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import TypeAlias

from sglang_prefill_ext.config import Order
from sglang_prefill_ext.scheduling.budget import QueueLoad
from sglang_prefill_ext.scheduling.job import Job

OrderKey: TypeAlias = tuple[float, ...]
"""The job with the smallest key is served first; among equal keys, the one that came first."""


def srpt_key(mark: int, remaining_tokens: int, ageing: int) -> int:
    """The key of srpt, see the module.

    Args:
        ageing: the factor `w`, >= 1; a higher one favours small jobs and delays large ones.
    """
    return mark + ageing * remaining_tokens


def order_key(order: Order, ageing: int) -> Callable[[Job], OrderKey]:
    """Return the function that computes a job's key in an order; fcfs ignores the ageing."""

    def srpt(job: Job) -> int:
        return srpt_key(job.mark, job.remaining_tokens, ageing)

    keys: dict[Order, Callable[[Job], OrderKey]] = {
        Order.SRPT: lambda job: (srpt(job),),
        Order.FCFS: lambda job: (),
        Order.PRIORITY: lambda job: (-job.priority, srpt(job)),
        Order.DEADLINE: lambda job: (
            math.inf if job.deadline_ms is None else job.deadline_ms,
            srpt(job),
        ),
    }
    return keys[order]


_Entry: TypeAlias = tuple[OrderKey, int, Job]


class JobQueue:
    """Jobs with forwards still to launch.

    A job's place and load are computed when it is pushed. To change what they depend on, drop the
    job first and push it afterwards.

    Args:
        key: see `order_key`; arrival decides among equals.
    """

    def __init__(self, key: Callable[[Job], OrderKey]) -> None:
        self.load = QueueLoad()
        self.begun: Job | None = None
        """The one queued job, if any, that has launched some of its forwards but not all."""
        self._key = key
        self._entries: list[_Entry] = []
        self._arrivals_s: list[float] = []
        self._pushed: dict[Job, tuple[_Entry, QueueLoad]] = {}
        self._with_deadline: dict[Job, float] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Job]:
        """Iterate in the order of service."""
        return (job for _, _, job in self._entries)

    @property
    def oldest_wait_s(self) -> float:
        """Seconds since the oldest of the queued jobs arrived; 0 if none waits."""
        return time.monotonic() - self._arrivals_s[0] if self._arrivals_s else 0.0

    def push(self, job: Job) -> None:
        """Add a job that is not queued."""
        entry, load = (self._key(job), job.number, job), job.load
        insort(self._entries, entry)
        insort(self._arrivals_s, job.arrival_s)
        self._pushed[job] = entry, load
        self.load += load
        if job.deadline_ms is not None:
            self._with_deadline[job] = job.deadline_ms
        if job.next_piece:
            assert self.begun is None, "one job at a time holds K/V between forwards"
            self.begun = job

    def drop(self, job: Job) -> None:
        """Remove a job; a job that is not queued is fine."""
        if job not in self._pushed:
            return
        entry, load = self._pushed.pop(job)
        del self._entries[bisect_left(self._entries, entry)]
        del self._arrivals_s[bisect_left(self._arrivals_s, job.arrival_s)]
        self.load -= load
        self._with_deadline.pop(job, None)
        if self.begun is job:
            self.begun = None

    def late(self, now_ms: float, tokens_per_s: float) -> list[Job]:
        """Return the jobs that would miss their deadlines even if they started now.

        Args:
            now_ms: Unix time in ms.
            tokens_per_s: the rate of forwards, > 0; infinite if it is not known.
        """
        return [
            job
            for job, deadline_ms in self._with_deadline.items()
            if now_ms + job.remaining_tokens / tokens_per_s * 1e3 > deadline_ms
        ]
