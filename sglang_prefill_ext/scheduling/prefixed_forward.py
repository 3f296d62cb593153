"""One forward: the plan of its jobs' pieces, and their prefix transactions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Self, TypeAlias

from sglang_prefill_ext.scheduling.budget import UNLIMITED
from sglang_prefill_ext.scheduling.graph_room import ForwardSize
from sglang_prefill_ext.scheduling.job import Job
from sglang_prefill_ext.scheduling.planner import JobShare, Share, plan_forward
from sglang_prefill_ext.scheduling.policy import SchedulingPolicy
from sglang_prefill_ext.scheduling.prefix_cache import PrefixCache, PrefixTransaction
from sglang_prefill_ext.scheduling.row_groups import RowGroups
from sglang_prefill_ext.scheduling.row_transactions import RowRoom, RowTransactions, room_for_rows
from sglang_prefill_ext.scheduling.split import Piece, PrefixKey, cacheable_prefix

_Key: TypeAlias = PrefixKey | Job
_Part: TypeAlias = tuple[Piece, PrefixTransaction | None]


class NoRoomError(Exception):
    """The KV pool has no room to hold the prefix of a divided job between its forwards."""

    def __init__(self, job: Job) -> None:
        super().__init__(job.rid)
        self.job = job


class PrefixedForward:
    """The plan of a forward for some jobs, and its transactions with the prefix cache.

    Pieces with an equal prefix share a group and a transaction. Such a transaction ends with the
    forward, so a `PrefixedForward` must end by `commit` or `rollback`. A divided job has a
    transaction of its own, `Job.held`, which ends with the job. Rows that came before may have
    groups of their own, see `RowGroups`, with transactions that end with the forward.

    Args:
        jobs: at least one, each with a piece left.
        cache: None where nothing is cached and no job is divided.
        rows: what groups of rows may take of the forward; None: no row has one.

    Attributes:
        plan: without the tokens that the cache has.
        shares: what the plan has of each job.
        num_cached: prefix tokens that the cache had at the launch of this forward. Those of a
            divided job count in its first forward only; a shared prefix counts once.
        ends_here: transactions of jobs that have ended or start over, still used by this forward.

    Raises:
        NoRoomError: all transactions are rolled back, except for `Job.held` of that job, which the
            caller has to roll back.
    """

    def __init__(
        self, jobs: Sequence[Job], cache: PrefixCache | None, rows: RowRoom | None = None
    ) -> None:
        self._transactions: dict[_Key, PrefixTransaction] = {}
        self._worth_keeping = {job.piece.prefix_key for job in jobs if job.keep_prefix}
        self.num_cached = 0
        self.ends_here: list[PrefixTransaction] = []
        self._row_groups: dict[Job, RowGroups] = {}
        self._page_tokens = 1 if cache is None else cache.page_tokens
        try:
            # Matched tokens cannot be evicted, so all jobs match before any job reserves.
            begun = [] if cache is None else [(job, self._begin(job, cache)) for job in jobs]
            rows_begun: list[PrefixTransaction] = []
            if cache is not None and rows is not None:
                rows_begun = self._begin_rows(jobs, cache, rows)
            for job, transaction in begun:
                if transaction and not transaction.reserve(whole=job.divided) and job.divided:
                    raise NoRoomError(job)
            for transaction in rows_begun:
                transaction.reserve(whole=False)
            parts = [self._parts(job) for job in jobs]
            self.plan = plan_forward([piece for own in parts for piece, _ in own])
        except Exception:
            self.rollback()
            raise
        shares = iter(self.plan.shares)
        self.shares = [self._share(job, own, shares) for job, own in zip(jobs, parts, strict=True)]

    @classmethod
    def cheapest(
        cls,
        jobs: Sequence[Job],
        cache: PrefixCache | None,
        policy: SchedulingPolicy,
        most_tokens: int = UNLIMITED,
    ) -> Self:
        """Use the cache, unless it is cheaper not to, see `GraphCost.recomputing_pays`.

        It is used in any case to store a prefix that a job wants kept.
        """
        rows = None
        if cache is not None and any(job.rows_seen is not None for job in jobs):
            rows = room_for_rows(jobs, cache, policy, most_tokens)
        prefixed = cls(jobs, cache, rows)
        size = ForwardSize.of(prefixed.plan.layout.groups)
        size = size._replace(tokens=size.tokens + prefixed.num_cached, held=0)
        pays = policy.graphs.recomputing_pays(size, policy.launch_tokens)
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

    def _begin_rows(
        self, jobs: Sequence[Job], cache: PrefixCache, room: RowRoom
    ) -> list[PrefixTransaction]:
        """Begin the transactions of rows that have groups of their own, and return them."""
        held = sum(each.cached for each in self._transactions.values())
        held += sum(job.distinct.prefix_len for job in jobs if job.held is not None)
        rows = RowTransactions(self._transactions, cache, room, held)
        for job in jobs:
            groups = rows.begin(job, self._of(job))
            if groups is not None:
                self._row_groups[job] = groups
        self.num_cached += rows.num_cached
        return rows.begun

    def _parts(self, job: Job) -> list[_Part]:
        """What the forward computes of a job, with the transaction of each prefix."""
        transaction, groups = self._of(job), self._row_groups.get(job)
        # The pieces of a large job leave out what the cache has.
        cached = 0 if transaction is None or job.large else transaction.cached
        # A later forward of the job needs all of the prefix.
        tail = 0 if job.divided else job.distinct.prefix_len % self._page_tokens
        rest = job.piece if groups is None else groups.rest(cached, tail)
        if rest is not None and cached:
            rest = rest.behind(cached)
        parts: list[_Part] = [] if rest is None else [(rest, transaction)]
        for key, pieces in {} if groups is None else groups.pieces.items():
            own = self._transactions[key]
            parts += [(piece.behind(own.cached), own) for piece in pieces.values()]
        return parts

    def _share(self, job: Job, parts: list[_Part], shares: Iterator[Share]) -> JobShare:
        """Take the shares of a job's parts, enter their slots, and return the share of the job."""
        plan, taken = self.plan, [*islice(shares, len(parts))]
        for (_, transaction), share in zip(parts, taken, strict=True):
            if transaction is None:
                continue
            span, slots = plan.layout.groups[share.group], transaction.slots
            stop = min(len(slots), span.prefix_len)
            if span.held:
                plan.held[share.group] = slots if span.held == len(slots) else slots[: span.held]
            if stop > span.held:
                plan.stores[share.group] = slots[span.held : stop]
        groups = self._row_groups.get(job)
        if groups is not None:
            return groups.share(taken)
        (share,) = taken
        return JobShare(share.values, share.num_tokens)


def _stores(transaction: PrefixTransaction | None) -> bool:
    return transaction is not None and len(transaction.slots) > transaction.cached
