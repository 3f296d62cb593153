"""What becomes of jobs whose forward failed or gave NaN: they run again alone, or end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from sglang_prefill_ext.scheduling.job import Job
from sglang_prefill_ext.scheduling.launches import LaunchedJob
from sglang_prefill_ext.scheduling.stats import RuntimeStats
from sglang_prefill_ext.wire.arrays import Float32Array
from sglang_prefill_ext.wire.status import Status

logger = logging.getLogger(__name__)

End: TypeAlias = Callable[[Sequence[Job], Status, str], None]
"""Called with jobs that are done or have failed, and with a message if they have failed."""

AfterFailure: TypeAlias = Callable[[Exception], None]
"""Called with the exception of a failed forward; raises if no other forward can follow."""


@dataclass(frozen=True, slots=True)
class Failures:
    """Recovers from failed forwards: each job of a shared one runs alone, that of a lone one ends.

    Attributes:
        stats: counts forwards whose jobs run again.
        requeue: called for every job that runs again.
        after_failure: what it raises ends the scheduler.
    """

    stats: RuntimeStats
    end: End
    requeue: Callable[[Job], None]
    after_failure: AfterFailure

    def failed(self, jobs: list[Job], error: Exception, *, shared: bool) -> None:
        """The forward of these jobs failed, or one of them could not be planned."""
        logger.error("The packed forward of %s failed", [job.rid for job in jobs], exc_info=error)
        self.after_failure(error)
        message = f"{type(error).__name__}: {error}"
        self._separate(jobs, Status.FAILED, message, shared=shared)

    def not_finite(self, jobs: list[Job], *, shared: bool) -> None:
        """A forward gave NaN for these jobs."""
        logger.warning("A packed forward gave NaN for %s", [job.rid for job in jobs])
        message = "The numbers of the request leave the range of the model's precision."
        self._separate(jobs, Status.NOT_FINITE, message, shared=shared)

    def not_cached(self, job: Job, error: Exception) -> None:
        """The prefix of a completed job could not be cached; its answer is still right."""
        logger.error("The prefix of packed request %s could not be cached", job.rid, exc_info=error)
        self.after_failure(error)

    def _separate(self, jobs: list[Job], status: Status, message: str, *, shared: bool) -> None:
        self.stats.retried_forwards += shared
        for job in jobs:
            if shared:
                job.alone = True
                self.requeue(job)
            else:
                self.end([job], status, message)


def jobs_with_nan(parts: list[LaunchedJob], values: Float32Array, *, shared: bool) -> list[Job]:
    """Return the jobs that a forward gave NaN for, unless they have to be answered with it.

    A lone request with embeddings of its own is answered with its NaN. The stock path cannot try
    again: for some models it takes no embeddings, and SGLang's scheduler would end.
    """
    separable = [part for part in parts if shared or not len(part.job.rows.overrides)]
    return [part.job for part in separable if np.isnan(values[part.share.values]).any()]
