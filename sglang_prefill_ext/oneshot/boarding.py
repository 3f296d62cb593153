"""One forward about to be launched: its jobs' pieces, and what is known of their prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang_prefill_ext.oneshot.job import Job
from sglang_prefill_ext.oneshot.planner import plan_forward
from sglang_prefill_ext.oneshot.prefix_cache import PrefixCache, PrefixTransaction
from sglang_prefill_ext.oneshot.split import Piece, PrefixKey


class Boarding:
    """The plan of a forward for some jobs, and its transactions with the prefix cache.

    Pieces with an equal prefix share a transaction, as they share a group. Every boarding ends by
    `commit` or by `rollback`.

    Args:
        jobs: at least one, each with a piece left.
        cache: None where nothing is cached.

    Attributes:
        plan: the forward, without what the cache has.
        held: per group its held prefix: what an earlier forward of the job left, or slots of the
            cache; None where nothing is held.
        stores: per group the slots where its first fresh tokens are stored; None where none is.
    """

    def __init__(self, jobs: Sequence[Job], cache: PrefixCache | None) -> None:
        self._transactions: dict[PrefixKey, PrefixTransaction] = {}
        self._worth_keeping = {job.piece.prefix_key for job in jobs if job.keep_prefix}
        try:
            pieces = [self._behind_cached(job.piece, cache) for job in jobs]
            self.plan = plan_forward(pieces)
        except Exception:
            self.rollback()
            raise
        self.held: list[Any] = [None] * len(self.plan.hold)
        self.stores: list[Any] = [None] * len(self.plan.hold)
        for job, piece, share in zip(jobs, pieces, self.plan.shares, strict=True):
            transaction = self._of(piece)
            if transaction is None:
                self.held[share.group] = job.held
                continue
            cached = transaction.cached
            if cached:
                self.held[share.group] = transaction.slots[:cached]
            if len(transaction.slots) > cached:
                self.stores[share.group] = transaction.slots[cached:]

    @property
    def num_cached(self) -> int:
        """Tokens that need not be computed, of every prefix once."""
        return sum(transaction.cached for transaction in self._transactions.values())

    def cached(self, piece: Piece) -> int:
        """Tokens of that piece's prefix that the cache has."""
        transaction = self._of(piece)
        return transaction.cached if transaction else 0

    def is_storing(self, key: PrefixKey | None) -> bool:
        """Whether this forward is about to put that prefix into the cache."""
        transaction = self._transactions.get(key) if key else None
        return transaction is not None and len(transaction.slots) > transaction.cached

    def commit(self) -> None:
        """The forward has succeeded. What raises has ended; `rollback` then ends the others."""
        for key in list(self._transactions):
            self._transactions.pop(key).commit()

    def rollback(self) -> None:
        """The forward has failed, is not to be kept, or was not launched at all."""
        for key in list(self._transactions):
            self._transactions.pop(key).rollback()

    def _of(self, piece: Piece) -> PrefixTransaction | None:
        return self._transactions.get(piece.prefix_key) if piece.prefix_key else None

    def _behind_cached(self, piece: Piece, cache: PrefixCache | None) -> Piece:
        key = piece.prefix_key
        if cache is None or key is None or not piece.uses_cache:
            return piece
        if key not in self._transactions:
            keep = key in self._worth_keeping
            self._transactions[key] = cache.begin(piece.prefix_ids, piece.adapter, keep=keep)
        return piece.behind(self._transactions[key].cached)
