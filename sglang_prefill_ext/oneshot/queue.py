"""The queue of packed jobs: first come, first served; aborted jobs leave at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from sglang_prefill_ext.oneshot.job import Job


class JobQueue:
    """Jobs with forwards still to launch, in order of arrival."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def waiting_tokens(self) -> int:
        """Tokens that queued jobs still have to compute."""
        return sum(job.waiting_tokens for job in self._jobs)

    def push(self, job: Job) -> None:
        self._jobs.append(job)

    def head(self) -> Job | None:
        """Return the job whose forward comes next; it stays queued until `drop`."""
        return self._jobs[0] if self._jobs else None

    def drop(self, job: Job) -> None:
        """Remove a job; a job that is not queued is fine."""
        if job in self._jobs:
            self._jobs.remove(job)

    def select(self, wanted: Callable[[Job], bool]) -> list[Job]:
        """Return the queued jobs that satisfy `wanted`, in order."""
        return [job for job in self._jobs if wanted(job)]
