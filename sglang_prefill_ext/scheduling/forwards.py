"""Launch forwards for waiting jobs, and collect their results."""

from __future__ import annotations

import time
from collections import deque

import numpy as np

from sglang_prefill_ext.scheduling.failures import AfterFailure, End, Failures, jobs_with_nan
from sglang_prefill_ext.scheduling.job import Job
from sglang_prefill_ext.scheduling.launches import LaunchedForward, LaunchedJob, LaunchTime
from sglang_prefill_ext.scheduling.planner import Executor, JobShare
from sglang_prefill_ext.scheduling.policy import SchedulingPolicy, choose_jobs
from sglang_prefill_ext.scheduling.prefix_cache import PrefixCache
from sglang_prefill_ext.scheduling.prefixed_forward import NoRoomError, PrefixedForward
from sglang_prefill_ext.scheduling.split import cacheable_prefix
from sglang_prefill_ext.scheduling.stats import RuntimeStats
from sglang_prefill_ext.wire.arrays import Float32Array
from sglang_prefill_ext.wire.status import Status


class Forwards:
    """The queue of jobs, and the forwards in flight that serve them.

    Args:
        executor: None if no job is ever queued.
        end: called for every job that needs no further forward.

    Attributes:
        asynchronous: whether a launch returns before its forward is done.
    """

    def __init__(
        self,
        executor: Executor | None,
        policy: SchedulingPolicy,
        cache: PrefixCache | None,
        stats: RuntimeStats,
        end: End,
        after_failure: AfterFailure,
    ) -> None:
        self.queue = policy.new_queue()
        self.in_flight: deque[LaunchedForward] = deque()
        self.asynchronous = executor is not None and executor.asynchronous
        self._executor = executor
        self._policy = policy
        self._cache = cache
        self._stats = stats
        self._end = end
        self._failures = Failures(stats, end, self.requeue, after_failure)
        self._launch_time = LaunchTime()

    @property
    def flying(self) -> list[Job]:
        """Jobs of the forwards in flight."""
        return [job for launched in self.in_flight for job in launched.jobs]

    @property
    def is_early(self) -> bool:
        """Whether the device will be busy for longer than the next launch takes."""
        if not self.in_flight:
            return False
        cost = sum(launched.cost for launched in self.in_flight)
        return self._launch_time.is_early(cost, self.in_flight[0].launch_s, time.monotonic())

    def launch_next(self, join_tokens: int) -> bool:
        """Launch the next forward; False if nothing waits. A failure is handled, not raised."""
        jobs = self._choose(join_tokens)
        if self._follows_a_leader(jobs):
            self.collect(leave=0)
            jobs = self._choose(join_tokens)
        if jobs:
            self._launch(jobs, join_tokens)
        return bool(jobs)

    def collect(self, leave: int) -> bool:
        """Wait for the oldest forwards until only `leave` are in flight; False if none had to."""
        waited = len(self.in_flight) > leave
        while len(self.in_flight) > leave:
            self._collect(self.in_flight.popleft())
        return waited

    def collect_done(self) -> bool:
        """Collect the forwards that are done, without waiting; return whether there was one."""
        in_flight = len(self.in_flight)
        while self.in_flight and self.in_flight[0].completion.done():
            self._collect(self.in_flight.popleft())
        return len(self.in_flight) < in_flight

    def requeue(self, job: Job) -> None:
        """Make a job start over from its first forward."""
        self.queue.drop(job)
        self.let_go(job)
        job.restart()
        self.queue.push(job)

    def let_go(self, job: Job, *, computed: bool = False) -> None:
        """End the transaction that a job holds, if any, or let the last forward that uses it do so.

        Args:
            computed: every forward of the job has succeeded, so the prefix may be cached.
        """
        held, job.held = job.held, None
        if held is None:
            return
        using = [launched for launched in self.in_flight if job in launched.jobs]
        if using:
            using[-1].prefixed.ends_here.append(held)
        elif computed:
            held.commit()
        else:
            held.rollback()

    def _launch(self, jobs: list[Job], join_tokens: int) -> None:
        assert self._executor is not None, "jobs are declined without an executor"
        start_s = time.monotonic()
        for job in jobs:
            job.start_s = job.start_s or start_s
        prefixed = None
        try:
            prefixed = PrefixedForward.cheapest(jobs, self._cache, self._policy, join_tokens)
            plan = prefixed.plan
            completion = self._executor.launch(plan)
        except NoRoomError as error:
            self._go_without(error.job, jobs, join_tokens)
            return
        except Exception as error:
            if prefixed is not None:
                prefixed.rollback()
            self._failures.failed(jobs, error, shared=len(jobs) > 1)
            return
        replayable = all(job.piece.is_replayable for job in jobs)
        cost = self._policy.cost(plan.num_tokens, plan.layout.groups, replayable=replayable)
        launched_jobs = []
        for job, share in zip(jobs, prefixed.shares, strict=True):
            launched_jobs.append(LaunchedJob(job, job.attempt, share))
            job.tokens_cached += prefixed.cached(job)
            self._advance(job, share)
        self.in_flight.append(LaunchedForward(launched_jobs, completion, start_s, prefixed, cost))
        self._launch_time.launched(start_s, time.monotonic())
        self._stats.record_forward(plan.num_tokens, plan.num_rows, prefixed.num_cached)

    def _go_without(self, job: Job, jobs: list[Job], join_tokens: int) -> None:
        """A job waits for the room that those of its forward, or forwards in flight, are about to
        give; it ends where there are none."""
        self.let_go(job)
        others = [other for other in jobs if other is not job]
        if others:
            self._launch(others, join_tokens)
        elif not self.collect(leave=0):
            message = "The KV cache has no room for the prefix between two forwards."
            self._end([job], Status.NO_ROOM, message)

    def _choose(self, join_tokens: int) -> list[Job]:
        """The jobs of the next forward; large ones are divided anew if the cache has changed."""
        while True:
            in_flight = len(self.flying)
            jobs = choose_jobs(self.queue, self._policy, join_tokens, in_flight=in_flight)
            fresh = [job for job in jobs if job.large and not job.next_piece]
            if any(self._is_under_way(job) for job in fresh):
                self.collect(leave=0)
            elif not sum(self._recut(job) for job in fresh):
                return jobs

    def _recut(self, job: Job) -> bool:
        """Whether a large job in the queue is not what it was: divided otherwise, or failed."""
        try:
            cached = self.cached_tokens(job)
            if cached == job.cached_tokens:
                return False
            self.queue.drop(job)
            job.cut(self._policy.budget, cached)
            self.queue.push(job)
        except Exception as error:
            self._failures.failed([job], error, shared=False)
        return True

    def cached_tokens(self, job: Job) -> int:
        """How many tokens of a job's prefix a forward would find in the cache now."""
        prefix = cacheable_prefix(job.distinct)
        if self._cache is None or prefix is None:
            return 0
        return self._cache.cached_tokens(prefix, job.distinct.adapter)

    def _is_under_way(self, job: Job) -> bool:
        """Whether another divided job with the same prefix has its last forward in flight.

        Once that is collected, the prefix is in the cache.
        """
        return any(
            other.launched and other.held is not None and job.has_prefix_of(other)
            for other in self.flying
        )

    def _follows_a_leader(self, jobs: list[Job]) -> bool:
        """Whether it pays to wait for a forward in flight that will cache a prefix of these jobs.

        Waiting loses the overlap of the two forwards, which costs about as much as a launch.
        """
        return any(
            launched.prefixed.is_storing(job.piece.prefix_key)
            for job in jobs
            if len(job.piece.prefix_ids) > self._policy.launch_tokens
            for launched in self.in_flight
        )

    def _advance(self, job: Job, share: JobShare) -> None:
        self.queue.drop(job)
        job.next_piece += 1
        job.forwards += 1
        job.tokens_computed += share.num_tokens
        if not job.launched:
            self.queue.push(job)

    def _collect(self, launched: LaunchedForward) -> None:
        waiting = [part for part in launched.launched_jobs if part.waits]
        shared = len(launched.launched_jobs) > 1
        try:
            values = launched.completion.wait()
            spoilt = bool(np.isnan(values).any())
            if spoilt:
                launched.prefixed.rollback()
            else:
                launched.prefixed.commit()
        except Exception as error:
            launched.prefixed.rollback()
            self._failures.failed([part.job for part in waiting], error, shared=shared)
            return
        busy_s = self._launch_time.collected(launched.cost, launched.launch_s, time.monotonic())
        self._stats.record_pace(launched.prefixed.plan.num_tokens, busy_s)
        bad = jobs_with_nan(waiting, values, shared=shared) if spoilt else []
        self._deliver([part for part in waiting if part.job not in bad], values)
        if bad:
            self._failures.not_finite(bad, shared=shared)

    def _deliver(self, parts: list[LaunchedJob], values: Float32Array) -> None:
        """Give jobs their values of a forward; those that have all values now are answered."""
        completed = []
        for part in parts:
            part.job.values.append(values[part.share.values])
            if part.job.completed:
                self._keep(part.job)
                completed.append(part.job)
        self._end(completed, Status.OK, "")

    def _keep(self, job: Job) -> None:
        try:
            self.let_go(job, computed=True)
        except Exception as error:
            self._failures.not_cached(job, error)
