"""The packed path of one scheduler: queues requests, runs forwards step by step, answers.

The runtime knows neither torch nor SGLang; it drives an `Executor` and hands results to a
callback. Every decision depends only on the calls and their order, never on a clock or on the
device, so tensor-parallel ranks that receive the same calls launch the same forwards. A rank that
is alone need not wait for the device where it has nothing else to do.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from sglang_prefill_ext.scheduling.budget import UNLIMITED, load_of, refusal, retry_after_s
from sglang_prefill_ext.scheduling.failures import AfterFailure
from sglang_prefill_ext.scheduling.forwards import Forwards
from sglang_prefill_ext.scheduling.job import Job
from sglang_prefill_ext.scheduling.planner import Executor
from sglang_prefill_ext.scheduling.policy import SchedulingPolicy, in_turn
from sglang_prefill_ext.scheduling.prefix_cache import PrefixCache
from sglang_prefill_ext.scheduling.split import unfit_row
from sglang_prefill_ext.scheduling.stats import RuntimeStats
from sglang_prefill_ext.wire.arrays import int_array
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows
from sglang_prefill_ext.wire.parts import distinct_rows, whole_rows
from sglang_prefill_ext.wire.read import Labels
from sglang_prefill_ext.wire.status import Status
from sglang_prefill_ext.wire.stock_reason import StockReason

logger = logging.getLogger(__name__)

# Takes the place of the rows of a request that cannot be read.
_UNREAD = PackedRows(int_array([0]), 0, int_array([1]), Labels(int_array([0])))

Ended: TypeAlias = tuple[Job, PackedResult]


class PackedRuntime:
    """The packed path behind one interface.

    Args:
        executor: None if there is a `declined_reason`.
        answer: called with jobs that end together and their results; exactly once for every job.
        declined_reason: why every job is declined; None if jobs are served.
        alone: this is the only rank, so it may decide by what the device has done.
        after_failure: by default other forwards can follow any failure.
    """

    def __init__(
        self,
        executor: Executor | None,
        answer: Callable[[Sequence[Ended]], None],
        policy: SchedulingPolicy,
        *,
        cache: PrefixCache | None = None,
        declined_reason: StockReason | None = None,
        alone: bool = False,
        after_failure: AfterFailure = lambda _error: None,
    ) -> None:
        self.stats = RuntimeStats()
        self.declined_reason = declined_reason
        self.policy = policy
        self._alone = alone
        self._answer = answer
        self._shares_prefixes = executor is None or executor.causal
        self._cache = cache
        self._forwards = Forwards(executor, policy, cache, self.stats, self._end, after_failure)
        self.queue = self._forwards.queue
        self._num_jobs = 0

    @property
    def busy(self) -> bool:
        """Whether any job is queued or in flight."""
        return bool(self.queue) or bool(self._forwards.in_flight)

    @property
    def in_flight(self) -> int:
        """Forwards that were launched and not collected."""
        return len(self._forwards.in_flight)

    @property
    def holders(self) -> frozenset[Job]:
        """Jobs that hold K/V of a prefix from one of their forwards to the next."""
        begun = self.queue.begun
        jobs = self._forwards.flying if begun is None else [*self._forwards.flying, begun]
        return frozenset(job for job in jobs if job.held is not None)

    @property
    def next_tokens(self) -> int:
        """Of the piece that the next forward is sure to compute, see
        `SchedulingPolicy.equivalents`; 0 if none waits."""
        return next((self.policy.equivalents(job.piece) for job in in_turn(self.queue)), 0)

    @property
    def deadline_pace(self) -> float:
        """Tokens per second by which to judge whether a deadline can still be met.

        Infinite while the next forward has room for all that waits; then only deadlines that have
        passed count. Ending a job early would help no other job there. And if jobs were ended
        untried, a pace that was measured on slow forwards would never be corrected.
        """
        if self._has_room:
            return math.inf
        return self.stats.tokens_per_s or math.inf

    @property
    def may_wait(self) -> bool:
        """Whether the next forward had better be launched later, for a rank that is alone.

        It had if the device is still busy and jobs that arrive meanwhile can join.
        """
        return self._alone and self._has_room and self._forwards.is_early

    def overdue(self, now_ms: float) -> bool:
        """Whether `expire` would end a job; `now_ms` is Unix time in ms."""
        return bool(self.queue.late(now_ms, self.deadline_pace))

    def submit(
        self,
        rid: str,
        rows: PackedRows,
        reply_to: Any,
        *,
        priority: int = 0,
        deadline_ms: float | None = None,
        keep_prefix: bool = False,
    ) -> None:
        """Queue a request, or answer it at once if it cannot be run; see `Job`."""
        job = Job(
            rid,
            rows,
            number=self._num_jobs,
            mark=self.stats.tokens_computed,
            priority=priority,
            deadline_ms=deadline_ms,
            keep_prefix=keep_prefix,
            arrival_s=time.monotonic(),
            reply_to=reply_to,
        )
        self._num_jobs += 1
        try:
            bad_end = self._plan(job)
        except Exception as error:
            logger.exception("Packed request %s could not be planned", rid)
            bad_end = Status.FAILED, str(error)
        if bad_end is None:
            self.queue.push(job)
        else:
            self._end([job], *bad_end)

    def refuse(self, rid: str, reply_to: Any, why: str) -> None:
        """Answer a request whose rows cannot be decoded."""
        self._end([Job(rid, _UNREAD, reply_to=reply_to)], Status.FAILED, why)

    def step(self, *, launch: bool = True, join_tokens: int = UNLIMITED) -> bool:
        """Launch the next forward, and answer the jobs that earlier forwards completed.

        If forwards run asynchronously, the device computes one while the host prepares the next.
        Without a launch, this waits for the forwards in flight. A rank that is alone does not wait:
        jobs that arrive meanwhile are launched behind them, so the device does not idle.

        Returns:
            Whether a forward was launched or collected.
        """
        if launch and self._forwards.launch_next(join_tokens):
            self._forwards.collect(leave=1 if self._forwards.asynchronous else 0)
            return True
        return self._forwards.collect_done() if self._alone else self.collect()

    def collect(self) -> bool:
        """Wait for the forwards in flight, and answer their jobs; return whether there was one."""
        return self._forwards.collect(leave=0)

    def expire(self, now_ms: float, tokens_per_s: float) -> list[str]:
        """End queued jobs that cannot meet their deadlines any more; return their ids.

        This is the one decision that depends on a clock. One rank reads it, and all ranks get the
        same numbers.

        Args:
            now_ms: Unix time in ms.
            tokens_per_s: see `JobQueue.late`.
        """
        late = self.queue.late(now_ms, tokens_per_s)
        self._end(late, Status.EXPIRED, "The deadline of the request cannot be met any more.")
        return [job.rid for job in late]

    def restart_waiting(self) -> None:
        """Collect the forwards in flight, then make the begun job, if any, start over.

        The K/V that it holds were computed with weights that may change now.
        """
        self.collect()
        if self.queue.begun is not None:
            self._forwards.requeue(self.queue.begun)

    def abort(self, rid: str, *, everything: bool = False) -> None:
        """End the job of that id, or all jobs; forwards in flight still finish.

        The whole id is compared. SGLang compares only the beginning of ids, by which the abort of a
        request named "p" would end all packed ones, whose ids begin with "packed".
        """
        jobs = [*self.queue, *self._forwards.flying]
        wanted = [job for job in jobs if everything or job.rid == rid]
        self._end(wanted, Status.ABORTED, "The request was aborted.")

    @property
    def _has_room(self) -> bool:
        """Whether the next forward has room for all that waits."""
        return self.policy.budget.fits(self.queue.load.tokens, self.queue.load.rows)

    def _plan(self, job: Job) -> tuple[Status, str] | None:
        """Divide a job into pieces; if it cannot be queued, return its final status and why."""
        budget = self.policy.budget
        if self.declined_reason is not None:
            return Status.DECLINED, self.declined_reason
        if not self._shares_prefixes:
            job.rows = job.distinct = whole_rows(job.rows)
        unfit = unfit_row(job.rows, budget)
        if unfit is not None:
            return Status.UNFIT, f"A row of {unfit} tokens fits no forward."
        job.arrived = load_of(job.rows)
        if why := refusal(self.policy.limits, self.queue.load, job.arrived):
            return Status.REJECTED, why
        if job.rows.num_rows > 1:
            job.distinct, job.value_places = distinct_rows(job.rows)
            if self._cache is not None and self._shares_prefixes:
                least = self.policy.least_row_tokens(job.distinct.prefix_len)
                job.rows_seen = self._cache.rows_seen(job.distinct, least)
                job.keep_prefix = job.keep_prefix or job.rows_seen is not None
        job.cut(budget, self._forwards.cached_tokens(job))
        if job.divided and self._cache is not None and job.rows.prefix_len > self._cache.capacity:
            message = f"There is room for {self._cache.capacity} tokens between two forwards."
            return Status.NO_ROOM, message
        return None

    def _end(self, jobs: Sequence[Job], status: Status, message: str = "") -> None:
        ended = [(job, self._ended(job, status, message)) for job in jobs if not job.ended]
        if ended:
            self._answer(ended)

    def _ended(self, job: Job, status: Status, message: str) -> PackedResult:
        job.ended = True
        self._forwards.let_go(job)
        self.queue.drop(job)
        wait_s, longest_row = 0.0, 0
        if status is Status.REJECTED:
            wait_s = retry_after_s(self.queue.load, self.stats.tokens_per_s)
        elif status is Status.UNFIT:
            longest_row = self.policy.budget.longest_row
        try:
            result = job.result(
                *(status, message),
                retry_after_s=wait_s,
                longest_row=longest_row,
                no_cache=self._cache is None or not self._cache.shares,
            )
        except Exception as error:
            logger.exception("The answer to packed request %s could not be made", job.rid)
            result = job.result(Status.FAILED, f"{type(error).__name__}: {error}")
        self.stats.record_end(result.status, job.rows.tokens_saved(job.tokens_computed))
        return result
