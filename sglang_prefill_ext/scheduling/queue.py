"""The queue of packed jobs: sorted by an order; aborted jobs leave at once."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import TypeAlias

from sglang_prefill_ext.scheduling.admission import QueueLoad
from sglang_prefill_ext.scheduling.job import Job
from sglang_prefill_ext.scheduling.order import OrderKey

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
