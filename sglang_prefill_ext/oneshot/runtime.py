"""The packed path of one scheduler: takes jobs, launches forwards, answers.

The runtime knows neither torch nor SGLang; it drives an `Executor` and hands results to a
callback. Every decision depends only on the calls and their order, never on a clock or on the
device, so tensor-parallel ranks that receive the same calls launch the same forwards.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from sglang_prefill_ext.oneshot.admission import QueueLoad, load_of, retry_after_s
from sglang_prefill_ext.oneshot.boarding import Boarding
from sglang_prefill_ext.oneshot.budget import UNLIMITED
from sglang_prefill_ext.oneshot.coalesce import choose_jobs
from sglang_prefill_ext.oneshot.distinct import distinct_rows
from sglang_prefill_ext.oneshot.flight import Completion, Executor, Flight, Passenger
from sglang_prefill_ext.oneshot.job import Job, JobResult, JobStatus
from sglang_prefill_ext.oneshot.order import order_key
from sglang_prefill_ext.oneshot.planner import Share
from sglang_prefill_ext.oneshot.policy import SchedulingPolicy
from sglang_prefill_ext.oneshot.prefix_cache import PrefixCache
from sglang_prefill_ext.oneshot.queue import JobQueue
from sglang_prefill_ext.oneshot.split import split_request
from sglang_prefill_ext.oneshot.stats import RuntimeStats
from sglang_prefill_ext.wire.packed import PackedRows

logger = logging.getLogger(__name__)


class PackedRuntime:
    """Queue, forwards in flight and counters of the packed path.

    Args:
        executor: runs forwards; None declines every job with `declined_reason`.
        answer: called exactly once a job with its result.
        policy: which jobs are taken, and when.
        cache: of prefixes; None where there is none.
    """

    def __init__(
        self,
        executor: Executor | None,
        answer: Callable[[Job, JobResult], None],
        policy: SchedulingPolicy,
        *,
        cache: PrefixCache | None = None,
        declined_reason: str = "",
    ) -> None:
        self.stats = RuntimeStats()
        self.declined_reason = declined_reason
        self._executor = executor
        self._answer = answer
        self._policy = policy
        self._cache = cache
        self._queue = JobQueue(order_key(policy.order, policy.ageing))
        self._in_flight: deque[Flight] = deque()
        self._num_jobs = 0
        self._collect_s = 0.0

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
        return self._queue.load.tokens

    @property
    def next_tokens(self) -> int:
        """Tokens of the piece that the next forward computes in any case; 0 if none waits."""
        jobs = choose_jobs(self._queue, self._policy.budget, launch_tokens=0)
        return jobs[0].piece.num_tokens if jobs else 0

    @property
    def waiting_load(self) -> QueueLoad:
        return self._queue.load

    @property
    def oldest_wait_s(self) -> float:
        """For how long the oldest of the queued jobs has been here; 0 if none waits."""
        now = time.monotonic()
        return max((now - job.arrival_s for job in self._queue), default=0.0)

    @property
    def deadline_pace(self) -> float:
        """Tokens per second by which to judge whether a deadline can still be met.

        Infinite, so that only deadlines that have passed count, while the next forward has room
        for all that waits: nobody gains if one gives up, and forwards that are never tried would
        leave a pace that was measured on slow ones as it is.
        """
        if self._policy.budget.fits(self._queue.load.tokens, self._queue.load.rows):
            return math.inf
        return self.stats.tokens_per_s or math.inf

    def overdue(self, now_ms: float) -> bool:
        """Whether `expire` would end a job; `now_ms` is Unix time in ms."""
        return bool(self._queue.late(now_ms, self.deadline_pace))

    def submit(
        self,
        rid: str,
        rows: PackedRows,
        reply_to: Any,
        *,
        priority: int = 0,
        deadline_ms: float | None = None,
        namespace: str = "",
    ) -> None:
        """Queue a request; it is answered later, also if it cannot be run.

        Args:
            priority, deadline_ms: see `Job`.
            namespace: requests of different namespaces never share a prefix.
        """
        job = Job(
            rid,
            rows,
            number=self._num_jobs,
            mark=self.stats.tokens_computed,
            priority=priority,
            deadline_ms=deadline_ms,
            arrival_s=time.monotonic(),
            reply_to=reply_to,
        )
        self._num_jobs += 1
        if self._executor is None:
            self._end(job, JobStatus.DECLINED, self.declined_reason)
            return
        refusal = self._policy.limits.refusal(self._queue.load, load_of(rows))
        if refusal:
            self._end(job, JobStatus.REJECTED, refusal)
            return
        try:
            kept, job.value_places = distinct_rows(rows)
            job.pieces = split_request(kept, self._policy.budget, namespace)
        except Exception as error:
            logger.exception("Packed request %s could not be planned", rid)
            self._end(job, JobStatus.FAILED, str(error))
            return
        self._queue.push(job)

    def step(self, *, launch: bool = True, join_tokens: int = UNLIMITED) -> bool:
        """Launch the next forward and answer what the forwards before it completed.

        Where forwards run asynchronously, results are collected one step later, so that the
        device computes one forward while the host prepares the next.

        Args:
            launch: False only collects.
            join_tokens: jobs join the first one only up to so many tokens.

        Returns:
            Whether a forward was launched or collected.
        """
        launched = launch and self._launch_next(join_tokens)
        overlap = launched and self._executor is not None and self._executor.asynchronous
        collected = False
        while len(self._in_flight) > (1 if overlap else 0):
            self._collect(self._in_flight.popleft())
            collected = True
        return launched or collected

    def expire(self, now_ms: float, tokens_per_s: float) -> list[str]:
        """End queued jobs that cannot meet their deadlines any more; return their ids.

        The one decision that hangs on a clock: one rank reads it, all get the same numbers.

        Args:
            now_ms: Unix time in ms.
            tokens_per_s: see `JobQueue.late`.
        """
        late = self._queue.late(now_ms, tokens_per_s)
        for job in late:
            self._end(job, JobStatus.EXPIRED, "The deadline of the request cannot be met any more.")
        return [job.rid for job in late]

    def restart_waiting(self) -> None:
        """Make queued jobs start over, unless a forward of theirs is in flight.

        What a job holds of its earlier forwards belongs to the weights of that time.
        """
        job = self._queue.begun
        if job is not None and all(job is not flying for flying in self._flying()):
            self._requeue(job)

    def abort(self, rid_prefix: str, *, everything: bool = False) -> None:
        """End jobs whose id starts with `rid_prefix`; forwards in flight are let finish."""

        def wanted(job: Job) -> bool:
            return everything or job.rid.startswith(rid_prefix)

        for job in self._queue.select(wanted) + [job for job in self._flying() if wanted(job)]:
            self._end(job, JobStatus.ABORTED, "The request was aborted.")

    def _flying(self) -> list[Job]:
        return [rider.job for flight in self._in_flight for rider in flight.passengers]

    def _launch_next(self, join_tokens: int) -> bool:
        jobs = self._choose(join_tokens)
        if self._follows_a_leader(jobs):
            while self._in_flight:
                self._collect(self._in_flight.popleft())
            jobs = self._choose(join_tokens)
        if not jobs:
            return False
        assert self._executor is not None, "jobs are declined without an executor"
        start_s = time.monotonic()
        for job in jobs:
            job.start_s = job.start_s or start_s
        boarding = None
        try:
            boarding = Boarding(jobs, self._cache)
            plan = boarding.plan
            completion = self._executor.launch(plan, boarding.held, boarding.stores)
        except Exception as error:
            if boarding is not None:
                boarding.rollback()
            self._fail(jobs, error, shared=len(jobs) > 1)
            return True
        passengers = []
        for job, share in zip(jobs, plan.shares, strict=True):
            passengers.append(Passenger(job, job.attempt, share))
            self._advance(job, share, completion)
        self._in_flight.append(Flight(passengers, completion, start_s, boarding))
        self.stats.record_forward(plan.num_tokens, plan.num_rows, boarding.num_cached)
        return True

    def _choose(self, join_tokens: int) -> list[Job]:
        policy = self._policy
        return choose_jobs(self._queue, policy.budget, policy.launch_tokens, join_tokens)

    def _follows_a_leader(self, jobs: list[Job]) -> bool:
        """Whether a forward in flight will cache a prefix of these jobs, and it pays to wait.

        Waiting costs the overlap of the two forwards, which is about what a launch costs.
        """
        return any(
            flight.boarding.is_storing(job.piece.prefix_key)
            for job in jobs
            if len(job.piece.prefix_ids) > self._policy.launch_tokens
            for flight in self._in_flight
        )

    def _advance(self, job: Job, share: Share, completion: Completion) -> None:
        self._queue.drop(job)
        job.held = completion.held[share.group] if job.piece.hold else None
        job.next_piece += 1
        job.forwards += 1
        job.tokens_computed += share.num_tokens
        if not job.launched:
            self._queue.push(job)

    def _collect(self, flight: Flight) -> None:
        try:
            values = flight.completion.wait()
        except Exception as error:
            flight.boarding.rollback()
            jobs = [rider.job for rider in flight.passengers if rider.aboard]
            self._fail(jobs, error, shared=len(flight.passengers) > 1)
            return
        flight.boarding.commit()
        now = time.monotonic()
        self.stats.record_pace(
            flight.boarding.plan.num_tokens, now - max(flight.launch_s, self._collect_s)
        )
        self._collect_s = now
        for rider in flight.passengers:
            if not rider.aboard:
                continue
            rider.job.values.append(values[rider.share.values])
            if rider.job.completed:
                self._end(rider.job, JobStatus.OK)

    def _fail(self, jobs: list[Job], error: Exception, *, shared: bool) -> None:
        """End the job of a failed forward; if it was shared, let each job run alone instead."""
        logger.error("The packed forward of %s failed", [job.rid for job in jobs], exc_info=error)
        self.stats.retried_forwards += shared
        for job in jobs:
            if shared:
                job.alone = True
                self._requeue(job)
            else:
                self._end(job, JobStatus.FAILED, f"{type(error).__name__}: {error}")

    def _requeue(self, job: Job) -> None:
        self._queue.drop(job)
        job.restart()
        self._queue.push(job)

    def _end(self, job: Job, status: JobStatus, message: str = "") -> None:
        if job.ended:
            return
        job.ended = True
        job.held = None
        self._queue.drop(job)
        self.stats.record_end(status, job.rows.num_prompt_tokens - job.tokens_computed)
        wait_s = 0.0
        if status is JobStatus.REJECTED:
            wait_s = retry_after_s(self._queue.load, self.stats.tokens_per_s)
        self._answer(job, job.result(status, message, retry_after_s=wait_s))
