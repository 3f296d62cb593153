"""Begin the transactions of rows that came before, as far as there is room and it pays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sglang_prefill_ext.scheduling.budget import UNLIMITED
from sglang_prefill_ext.scheduling.graph_room import groups_of
from sglang_prefill_ext.scheduling.job import Job
from sglang_prefill_ext.scheduling.policy import SchedulingPolicy
from sglang_prefill_ext.scheduling.prefix_cache import PrefixCache, PrefixTransaction
from sglang_prefill_ext.scheduling.row_groups import RowGroups
from sglang_prefill_ext.scheduling.split import PrefixKey


class RowRoom(NamedTuple):
    """What rows that have groups of their own may take of a forward.

    Attributes:
        held: tokens that the groups of the forward may hold in all, those of other rows included.
        groups: most groups of rows.
        added: tokens that they may add to what the pieces of the jobs count.
    """

    held: int
    groups: int = UNLIMITED
    added: int = 0


class RowTransactions:
    """The transactions of one forward's rows that have groups of their own.

    The last tokens of a shared prefix, behind its whole pages, are never found in the cache. So
    each group of a row computes them, until its own prefix is cached.

    Args:
        transactions: those of the forward, by prefix or job; those of rows are added.
        held: tokens that the forward holds without groups of rows.

    Attributes:
        begun: those of rows that join; nothing is reserved yet.
        num_cached: tokens of these that the cache has, behind the prefixes that rows share.
    """

    def __init__(
        self,
        transactions: dict[PrefixKey | Job, PrefixTransaction],
        cache: PrefixCache,
        room: RowRoom,
        held: int,
    ) -> None:
        self.begun: list[PrefixTransaction] = []
        self.num_cached = 0
        self._transactions, self._cache = transactions, cache
        most_held, self._groups, self._most_added = room
        self._room = most_held - held
        self._counted: set[PrefixKey | None] = set()

    def begin(self, job: Job, main: PrefixTransaction | None) -> RowGroups | None:
        """Begin for the rows of a job's piece; return those that join, if any does.

        Args:
            main: the transaction of the prefix that the rows share.
        """
        shared, cached = job.distinct.prefix_len, 0 if main is None else main.cached
        # Where the cache has the shared prefix, each group holds it: there is no room for more.
        most = min(self._groups, self._room // max(cached, 1))
        if job.rows_seen is None or most <= 0:
            return None
        first_row = sum(piece.span.num_rows for piece in job.pieces[: job.next_piece])
        groups = RowGroups(job.distinct, job.piece, first_row, job.rows_seen, most)
        tail = shared % self._cache.page_tokens
        if cached >= shared - tail:
            spare = self._spare(job, cached, tail * len(groups.pieces))
        else:  # the cache has no more of any row, so only those that begin alike may join
            spare = self._spare(job, cached, 0)
            alike = {key: self._stored(key, groups) or cached for key in groups.pieces}
            groups.join(alike, spare, self._room)
        new, found = self._begin_each(groups)
        groups.join(found, spare, self._room)
        for key in new:
            if key in groups.pieces:
                self.begun.append(self._transactions[key])
                self.num_cached += max(0, found[key] - shared)
            else:
                self._transactions.pop(key).rollback()
        self._room -= sum(found[key] for key in groups.pieces)
        self._groups -= len(groups.pieces)
        return groups if groups.pieces else None

    def _spare(self, job: Job, cached: int, tails: int) -> int:
        """Tokens that rows of a job may add: those that its piece counts, but the cache has, and
        the last tokens of the prefix in each group."""
        tails = min(self._most_added, tails)
        self._most_added -= tails
        key = job.piece.prefix_key
        if job.large or key in self._counted:  # not counted, or counted by another job
            return tails
        self._counted.add(key)
        return tails + cached

    def _begin_each(self, groups: RowGroups) -> tuple[list[PrefixKey], dict[PrefixKey, int]]:
        """Begin transactions, until they hold more than there is room for.

        Returns:
            The prefixes whose transactions began, and for all that have one the tokens that need
            not be computed.
        """
        new: list[PrefixKey] = []
        found: dict[PrefixKey, int] = {}
        held = 0
        for key in groups.pieces:
            stored = self._stored(key, groups)
            if not stored:
                row = groups.any_of(key)
                self._transactions[key] = self._cache.begin_row(row.prefix_ids, row.adapter)
                new.append(key)
            found[key] = stored or self._transactions[key].cached
            held += found[key]
            if held > self._room:
                break
        return new, found

    def _stored(self, key: PrefixKey, groups: RowGroups) -> int:
        """Tokens of a prefix that another job of this forward computes: as good as cached."""
        return len(groups.any_of(key).prefix_ids) if key in self._transactions else 0


def room_for_rows(
    jobs: Sequence[Job], cache: PrefixCache, policy: SchedulingPolicy, most_tokens: int
) -> RowRoom:
    """Return what groups of rows, of which some came before, may take of a forward.

    They hold no more than graphs can read, and are no more than graphs have room for, unless the
    forward would be too long for them even so.

    Args:
        most_tokens: of the forward, besides its budget; it may have more without these groups.
    """
    tokens = sum(job.piece.num_tokens for job in jobs)
    reads = sum(len(job.piece.reads) for job in jobs)
    added = max(0, min(policy.budget.room(tokens, reads), most_tokens - tokens))
    unbounded, graphs = RowRoom(cache.capacity, added=added), policy.graphs
    if not graphs.tokens:
        return unbounded
    in_graphs = min(cache.capacity, graphs.most_held)
    groups = groups_of(graphs.tokens) - len(jobs)
    seen = [(job.distinct.prefix_len, job.rows_seen) for job in jobs if job.rows_seen is not None]
    longest = [(prefix_len, int(lens.max())) for prefix_len, lens in seen]
    # A row also holds the shared prefix, so it saves only a part of what it holds.
    saved = in_graphs * max(1 - prefix_len / most for prefix_len, most in longest)
    saved = min(saved, groups * max(most - prefix_len for prefix_len, most in longest))
    least = sum(len(job.piece.suffix_ids) for job in jobs) - saved
    fits = groups >= 0 and least <= graphs.tokens
    if fits and all(job.piece.is_replayable for job in jobs):
        return RowRoom(in_graphs, groups, added)
    return unbounded
