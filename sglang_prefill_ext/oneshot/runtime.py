"""The packed path of one scheduler: takes jobs, launches forwards, answers.

The runtime knows neither torch nor SGLang; it drives an `Executor` and hands results to a
callback. Every decision depends only on the jobs and their order, never on a clock or on the
device, so tensor-parallel ranks that receive the same jobs launch the same forwards.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from sglang_prefill_ext.oneshot.job import Job, JobResult, JobStatus
from sglang_prefill_ext.oneshot.planner import ForwardPlan, plan_forwards
from sglang_prefill_ext.oneshot.queue import JobQueue
from sglang_prefill_ext.oneshot.stats import RuntimeStats
from sglang_prefill_ext.wire.packed import Float32Array, PackedRows, values_to_bytes

logger = logging.getLogger(__name__)


class Completion(Protocol):
    """A launched forward. On a GPU it runs on after `Executor.launch` has returned."""

    held: Any
    """Handle on the K/V of the prefix, for the job's next forward; None if not asked for."""

    def wait(self) -> Float32Array:
        """Block until the forward is done; return its label values, float32, row by row."""
        ...


class Executor(Protocol):
    """Launches forwards in the order of the calls."""

    @property
    def asynchronous(self) -> bool:
        """Whether `launch` returns before the forward is done; the same on every rank."""
        ...

    def launch(self, plan: ForwardPlan, held: Any) -> Completion: ...


class PackedRuntime:
    """Queue, forwards in flight and counters of the packed path.

    Args:
        executor: runs forwards; None declines every job with `declined_reason`.
        answer: called exactly once a job with its result.
        max_forward_tokens: token budget of one forward.
    """

    def __init__(
        self,
        executor: Executor | None,
        answer: Callable[[Job, JobResult], None],
        *,
        max_forward_tokens: int,
        declined_reason: str = "",
    ) -> None:
        self.stats = RuntimeStats()
        self.declined_reason = declined_reason
        self._executor = executor
        self._answer = answer
        self._max_forward_tokens = max_forward_tokens
        self._queue = JobQueue()
        self._in_flight: deque[tuple[Job, ForwardPlan, Completion]] = deque()

    @property
    def busy(self) -> bool:
        """Whether any job is queued or in flight."""
        return bool(self._queue) or bool(self._in_flight)

    @property
    def in_flight(self) -> int:
        """Forwards that were launched and not collected."""
        return len(self._in_flight)

    @property
    def waiting_jobs(self) -> int:
        return len(self._queue)

    @property
    def waiting_tokens(self) -> int:
        return self._queue.waiting_tokens

    def submit(self, rid: str, rows: PackedRows, reply_to: Any) -> None:
        """Queue a request; it is answered later, also if it cannot be run."""
        job = Job(rid, rows, (), time.monotonic(), reply_to)
        if self._executor is None:
            self._end(job, JobStatus.DECLINED, self.declined_reason)
            return
        try:
            job.plans = plan_forwards(rows, self._max_forward_tokens)
        except Exception as error:
            logger.exception("Packed request %s could not be planned", rid)
            self._end(job, JobStatus.FAILED, str(error))
            return
        self._queue.push(job)

    def step(self) -> bool:
        """Launch the next forward and answer what the forwards before it completed.

        Where forwards run asynchronously, results are collected one step later, so that the
        device computes one forward while the host prepares the next.

        Returns:
            Whether a forward was launched or collected.
        """
        launched = self._launch_next()
        overlap = launched and self._executor is not None and self._executor.asynchronous
        collected = False
        while len(self._in_flight) > (1 if overlap else 0):
            self._collect(*self._in_flight.popleft())
            collected = True
        return launched or collected

    def restart_waiting(self) -> None:
        """Make queued jobs start over, unless a forward of theirs is in flight.

        What a job holds of its earlier forwards belongs to the weights of that time.
        """
        flying = {id(job) for job, _, _ in self._in_flight}
        for job in self._queue.select(lambda job: id(job) not in flying):
            job.restart()

    def abort(self, rid_prefix: str, *, everything: bool = False) -> None:
        """End jobs whose id starts with `rid_prefix`; forwards in flight are let finish."""

        def wanted(job: Job) -> bool:
            return everything or job.rid.startswith(rid_prefix)

        flying = [job for job, _, _ in self._in_flight if wanted(job)]
        for job in self._queue.select(wanted) + flying:
            self._end(job, JobStatus.ABORTED, "The request was aborted.")

    def _launch_next(self) -> bool:
        job = self._queue.head()
        if job is None:
            return False
        assert self._executor is not None, "jobs are declined without an executor"
        if job.start_s is None:
            job.start_s = time.monotonic()
        plan = job.plans[job.next_plan]
        try:
            completion = self._executor.launch(plan, job.held)
        except Exception as error:
            self._fail(job, error)
            return True
        job.next_plan += 1
        job.held = completion.held
        if job.launched:
            self._queue.drop(job)
        self._in_flight.append((job, plan, completion))
        self.stats.record_forward(plan.layout.num_tokens, plan.layout.num_rows)
        return True

    def _collect(self, job: Job, plan: ForwardPlan, completion: Completion) -> None:
        try:
            values = completion.wait()
        except Exception as error:
            self._fail(job, error)
            return
        job.values.append(values)
        if len(job.values) == len(job.plans) and not job.ended:
            self._end(job, JobStatus.OK)

    def _fail(self, job: Job, error: Exception) -> None:
        logger.exception("The packed forward of request %s failed", job.rid)
        if not job.ended:
            self._end(job, JobStatus.FAILED, f"{type(error).__name__}: {error}")

    def _end(self, job: Job, status: JobStatus, message: str = "") -> None:
        if job.ended:
            return
        job.ended = True
        job.held = None
        self._queue.drop(job)
        self.stats.record_end(status, job.rows)
        self._answer(job, _result(job, status, message))


def _result(job: Job, status: JobStatus, message: str) -> JobResult:
    now = time.monotonic()
    start = now if job.start_s is None else job.start_s
    values = b"".join(map(values_to_bytes, job.values)) if status is JobStatus.OK else b""
    return JobResult(
        rid=job.rid,
        status=status,
        message=message,
        values=values,
        forwards=job.next_plan,
        tokens_computed=sum(plan.layout.num_tokens for plan in job.plans[: job.next_plan]),
        queue_ms=(start - job.arrival_s) * 1e3,
        compute_ms=(now - start) * 1e3,
    )
