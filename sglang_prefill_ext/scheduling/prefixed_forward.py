"""One forward: the plan of its jobs' pieces, their prefix transactions, and its executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeAlias

from sglang_prefill_ext.scheduling.graph_room import ForwardSize, GraphCost
from sglang_prefill_ext.scheduling.job import Job
from sglang_prefill_ext.scheduling.planner import ForwardPlan, Share, plan_forward
from sglang_prefill_ext.scheduling.prefix_cache import PrefixCache, PrefixTransaction
from sglang_prefill_ext.scheduling.split import Piece, PrefixKey, cacheable_prefix
from sglang_prefill_ext.wire.arrays import Float32Array

_Key: TypeAlias = PrefixKey | Job


class NoRoomError(Exception):
    """The KV pool has no room to hold the prefix of a divided job between its forwards."""

    def __init__(self, job: Job) -> None:
        super().__init__(job.rid)
        self.job = job


class PrefixedForward:
    """The plan of a forward for some jobs, and its transactions with the prefix cache.

    Pieces with an equal prefix share a group and a transaction. Such a transaction ends with the
    forward, so a `PrefixedForward` must end by `commit` or `rollback`. A divided job has a
    transaction of its own, `Job.held`, which ends with the job.

    Args:
        jobs: at least one, each with a piece left.
        cache: None where nothing is cached and no job is divided.

    Attributes:
        plan: without the tokens that the cache has.
        num_cached: prefix tokens that the cache had at the launch of this forward. Those of a
            divided job count in its first forward only; a shared prefix counts once.
        ends_here: transactions of jobs that have ended or start over, still used by this forward.

    Raises:
        NoRoomError: all transactions are rolled back, except for `Job.held` of that job, which the
            caller has to roll back.
    """

    def __init__(self, jobs: Sequence[Job], cache: PrefixCache | None) -> None:
        self._transactions: dict[_Key, PrefixTransaction] = {}
        self._worth_keeping = {job.piece.prefix_key for job in jobs if job.keep_prefix}
        self.num_cached = 0
        self.ends_here: list[PrefixTransaction] = []
        try:
            # Matched tokens cannot be evicted, so all jobs match before any job reserves.
            begun = [] if cache is None else [(job, self._begin(job, cache)) for job in jobs]
            for job, transaction in begun:
                if transaction and not transaction.reserve(whole=job.divided) and job.divided:
                    raise NoRoomError(job)
            self.plan = plan_forward([self._behind_cached(job) for job in jobs])
        except Exception:
            self.rollback()
            raise
        for job, share in zip(jobs, self.plan.shares, strict=True):
            transaction, span = self._of(job), self.plan.layout.groups[share.group]
            if transaction is None:
                continue
            if span.held:
                self.plan.held[share.group] = transaction.slots[: span.held]
            stop = min(len(transaction.slots), span.prefix_len)
            if stop > span.held:
                self.plan.stores[share.group] = transaction.slots[span.held : stop]

    @classmethod
    def cheapest(
        cls, jobs: Sequence[Job], cache: PrefixCache | None, graphs: GraphCost, launch_tokens: int
    ) -> Self:
        """Use the cache, unless it is cheaper not to, see `GraphCost.recomputing_pays`.

        It is used in any case to store a prefix that a job wants kept.
        """
        prefixed = cls(jobs, cache)
        size = ForwardSize.of(prefixed.plan.layout.groups)
        size = size._replace(tokens=size.tokens + prefixed.num_cached, held=0)
        pays = graphs.recomputing_pays(size, launch_tokens)
        if not (pays and prefixed._transactions) or prefixed._needs_cache(jobs):
            return prefixed
        prefixed.rollback()
        return cls(jobs, None)

    def cached(self, job: Job) -> int:
        """Tokens of a job's prefix from the cache; 0 for the later pieces of a divided job."""
        transaction = self._of(job)
        return transaction.cached if transaction and not job.next_piece else 0

    def is_storing(self, key: PrefixKey | None) -> bool:
        """Whether this forward will put the prefix of that key into the cache."""
        return _stores(self._transactions.get(key) if key else None)

    def commit(self) -> None:
        """The forward has succeeded: commit every transaction.

        If a commit raises, its transaction has ended; call `rollback` to end the others.
        """
        for key in list(self._transactions):
            self._transactions.pop(key).commit()
        self.rollback()  # only what has ended or starts over is left

    def rollback(self) -> None:
        """The forward has failed, gave NaN, or was not launched: roll back every transaction."""
        for key in list(self._transactions):
            self._transactions.pop(key).rollback()
        while self.ends_here:
            self.ends_here.pop().rollback()

    def _needs_cache(self, jobs: Sequence[Job]) -> bool:
        """Whether the cache has to be used, or no graph could replay these jobs without it."""
        return any(
            job.divided
            or not job.piece.is_replayable
            or (job.keep_prefix and _stores(self._of(job)))
            for job in jobs
        )

    def _of(self, job: Job) -> PrefixTransaction | None:
        if job.held is not None:
            return job.held
        key = job if job.large else job.piece.prefix_key
        return self._transactions.get(key) if key else None

    def _begin(self, job: Job, cache: PrefixCache) -> PrefixTransaction | None:
        """Begin a transaction for the job, and return it; None if it needs none of its own."""
        piece = job.piece
        if job.held is not None:
            return None
        if job.large:
            return self._begin_large(job, cache)
        key = piece.prefix_key
        if key is None or key in self._transactions or not (cache.shares and piece.uses_cache):
            return None
        keep = key in self._worth_keeping
        return self._add(key, cache.begin(piece.prefix_ids, piece.adapter, keep=keep))

    def _begin_large(self, job: Job, cache: PrefixCache) -> PrefixTransaction | None:
        prefix = cacheable_prefix(job.distinct)
        if prefix is not None:
            transaction = cache.begin(prefix, job.distinct.adapter, keep=job.keep_prefix)
        elif job.divided and job.distinct.prefix_len:
            transaction = cache.begin_private(job.distinct.prefix_len)
        else:
            return None
        if not job.divided:
            return self._add(job, transaction)
        job.held = transaction
        self.num_cached += transaction.cached
        return transaction

    def _add(self, key: _Key, transaction: PrefixTransaction) -> PrefixTransaction:
        self._transactions[key] = transaction
        self.num_cached += transaction.cached
        return transaction

    def _behind_cached(self, job: Job) -> Piece:
        transaction = None if job.large else self._of(job)
        return job.piece if transaction is None else job.piece.behind(transaction.cached)


def _stores(transaction: PrefixTransaction | None) -> bool:
    return transaction is not None and len(transaction.slots) > transaction.cached


class Completion(Protocol):
    """A launched forward. On a GPU it runs on after `Executor.launch` has returned."""

    def done(self) -> bool:
        """Whether `wait` would not block."""

    def wait(self) -> Float32Array:
        """Block until the forward is done; return the values of its reads, float32, in order."""


class Executor(Protocol):
    """Launches forwards in the order of the calls."""

    @property
    def asynchronous(self) -> bool:
        """Whether `launch` returns before the forward is done; the same on every rank."""

    @property
    def causal(self) -> bool:
        """Whether prompts can share a prefix, because no token sees the tokens after it."""

    def launch(self, plan: ForwardPlan) -> Completion:
        """Launch a forward."""


@dataclass(frozen=True, slots=True)
class LaunchedJob:
    """A job's part in a launched forward."""

    job: Job
    attempt: int
    share: Share

    @property
    def waits(self) -> bool:
        """Whether the job still waits for this forward: it has not ended or started over."""
        return not self.job.ended and self.job.attempt == self.attempt


@dataclass(frozen=True, slots=True)
class LaunchedForward:
    """A launched forward that is not collected yet.

    Attributes:
        launch_s: monotonic time.
        cost: see `SchedulingPolicy.cost`.
    """

    launched_jobs: list[LaunchedJob]
    completion: Completion
    launch_s: float
    prefixed: PrefixedForward
    cost: int

    @property
    def num_tokens(self) -> int:
        return self.prefixed.plan.num_tokens

    @property
    def jobs(self) -> list[Job]:
        return [each.job for each in self.launched_jobs]
