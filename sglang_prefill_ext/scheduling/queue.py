"""The jobs that wait, the order in which they are served, and how much may wait.

Time is counted in *processed tokens*, the tokens of all forwards launched so far. A job's key
hangs on nothing that changes while it waits, so a queue that is sorted once stays sorted.

**srpt**, shortest remaining processing time first, with ageing. With ``mark`` the tokens that were
processed when the job came, ``r`` the tokens that it still needs, without those that the prefix
cache had then, and ``w`` the ageing::

    key = mark + w * r

It is the point by which a job that is slowed down `w` times would be done: small jobs overtake
large ones, and the older a job, the smaller others must be to overtake it still.

*Bound.* Let ``L`` be the most tokens that ever wait (the queue's limit) and ``B`` the tokens of the
largest forward. A job's last forward starts before ``w * r + B + L`` further tokens are processed.
Where requests name adapters, of which ``a`` have jobs that wait, it is ``w * r + a * B + L``.
Proof: once ``mark + w * r`` tokens are processed, which one forward can overshoot by less than
``B``, every job that comes later has a larger key and is launched behind, as forwards take jobs in
order and stop at the first that does not fit. All that can still run before are the jobs that wait
at that moment, ``L`` tokens at most, this job's among them. A forward passes over jobs with another
adapter than its first one's and so may take some from behind this job, but only once all before it
with that adapter are chosen: one forward an adapter, ``B`` tokens each. First come, first served
waits up to ``L``, so `w` times its own length is the price that a long job pays at most.

Failed forwards are not counted; their jobs are computed again, each once.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Protocol, TypeAlias

from sglang_prefill_ext.config import Order
from sglang_prefill_ext.scheduling.job import Job, QueueLoad

OrderKey: TypeAlias = tuple[float, ...]
"""Jobs with a smaller key are served first, among equals the one that came first."""


class Waiting(Protocol):
    """What an order may look at."""

    @property
    def mark(self) -> int:
        """Tokens that were processed when the job came."""
        ...

    @property
    def remaining_tokens(self) -> int:
        """Tokens that are still to be computed, >= 1; without cached ones."""
        ...

    @property
    def priority(self) -> int:
        """Higher is served first."""
        ...

    @property
    def deadline_ms(self) -> float | None:
        """Unix time in ms."""
        ...


def order_key(order: Order, ageing: int) -> Callable[[Waiting], OrderKey]:
    """Return the key of an order.

    Args:
        ageing: `w`, in tokens a token, >= 1; higher is better for small jobs and worse for large
            ones. Without effect on fcfs.
    """

    def srpt(job: Waiting) -> float:
        return job.mark + ageing * job.remaining_tokens

    keys: dict[Order, Callable[[Waiting], OrderKey]] = {
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

    A job's place is settled when it is pushed. To change what its place or load depends on, drop
    it first and push it afterwards.

    Args:
        key: of the order in which jobs are served; arrival decides among equals.
    """

    def __init__(self, key: Callable[[Job], OrderKey]) -> None:
        self.load = QueueLoad()
        self.begun: Job | None = None
        """The one job of which some forwards were launched and others wait, if any."""
        self._key = key
        self._entries: list[_Entry] = []
        self._pushed: dict[Job, tuple[_Entry, QueueLoad]] = {}
        self._with_deadline: dict[Job, float] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Job]:
        """Iterate in the order of service."""
        return (job for _, _, job in self._entries)

    def push(self, job: Job) -> None:
        """Add a job that is not queued."""
        entry, load = (self._key(job), job.number, job), job.load
        insort(self._entries, entry)
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
        self.load -= load
        self._with_deadline.pop(job, None)
        if self.begun is job:
            self.begun = None

    def select(self, wanted: Callable[[Job], bool]) -> list[Job]:
        """Return the queued jobs that satisfy `wanted`, in order."""
        return [job for job in self if wanted(job)]

    def late(self, now_ms: float, tokens_per_s: float) -> list[Job]:
        """Return the jobs that would miss their deadlines even if they started now.

        Args:
            now_ms: Unix time in ms.
            tokens_per_s: how fast forwards compute, > 0; infinite if that is not known.
        """
        return [
            job
            for job, deadline_ms in self._with_deadline.items()
            if now_ms + job.remaining_tokens / tokens_per_s * 1e3 > deadline_ms
        ]


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Most that may wait, in the units of `QueueLoad`."""

    tokens: int
    rows: int
    bytes: int

    def refusal(self, waiting: QueueLoad, request: QueueLoad) -> str:
        """Return why a request may not join what waits; empty if it may.

        Where nothing waits every request may, as a larger one could never be served otherwise.
        """
        if waiting == QueueLoad():
            return ""
        after = waiting + request
        for limit in fields(self):
            most, would_be = getattr(self, limit.name), getattr(after, limit.name)
            if would_be > most:
                return (
                    f"The server is busy: {would_be} {limit.name} would wait, "
                    f"the limit is {most}. Try again later."
                )
        return ""


def retry_after_s(waiting: QueueLoad, tokens_per_s: float) -> float:
    """Estimate in how many seconds what waits now will be computed; 0 if no rate is known."""
    return waiting.tokens / tokens_per_s if tokens_per_s > 0 else 0.0
