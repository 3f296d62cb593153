"""A packed request on the scheduler's side, from its arrival to its answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.scheduling.budget import ForwardBudget, QueueLoad
from sglang_prefill_ext.scheduling.prefix_cache import PrefixTransaction
from sglang_prefill_ext.scheduling.split import Piece, split_request
from sglang_prefill_ext.wire.arrays import Float32Array, values_to_bytes
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows
from sglang_prefill_ext.wire.status import Status


@dataclass(slots=True, eq=False)
class Job:
    """One packed request and its progress.

    Attributes:
        rid: request id, unique among the requests in flight.
        rows: the rows that were asked for.
        number: place in the order of arrival.
        mark: tokens that packed forwards had computed in all when the job came.
        priority: higher is served first, if the order regards it.
        deadline_ms: Unix time in ms, stamped by the front end; None for no deadline.
        keep_prefix: the prefix is to be cached: the client says that it will come again, or rows
            behind it did.
        arrival_s: monotonic time of arrival, for reporting only, never for a decision.
        reply_to: opaque return route of the transport.
        arrived: the load of the rows.
        distinct: the rows that are computed, `rows` without repeated ones; `rows` until the job is
            planned.
        pieces: one per forward of the job; `next_piece` of them were launched.
        large: the rows do not fit one forward, unless the prefix cache has enough of the prefix.
        cached_tokens: prefix tokens that the prefix cache had when the job was divided; the pieces
            of a large job leave them out.
        rows_seen: see `PrefixCache.rows_seen`, of the distinct rows.
        value_places: for each value of the answer, its index among the computed values; None if
            they are the same.
        attempt: how often the job started over; forwards of earlier attempts are ignored.
        alone: the job shares no forward any more, because a shared one failed.
        start_s: monotonic time of the first launch; None before it.
        held: of a divided job, the transaction of its prefix, from its first forward on.
        values: of the forwards that have completed, in order.
        forwards, tokens_computed, tokens_cached: totals so far; cached tokens are those that the
            prefix cache had when a forward of this attempt was launched.
    """

    rid: str
    rows: PackedRows
    number: int = 0
    mark: int = 0
    priority: int = 0
    deadline_ms: float | None = None
    keep_prefix: bool = False
    arrival_s: float = 0.0
    reply_to: Any = None
    arrived: QueueLoad = field(default_factory=QueueLoad)
    distinct: PackedRows = field(init=False)
    pieces: Sequence[Piece] = ()
    large: bool = False
    cached_tokens: int = 0
    rows_seen: NDArray[np.int64] | None = None
    value_places: NDArray[np.int64] | None = None
    next_piece: int = 0
    attempt: int = 0
    alone: bool = False
    start_s: float | None = None
    held: PrefixTransaction | None = None
    values: list[Float32Array] = field(default_factory=list)
    forwards: int = 0
    tokens_computed: int = 0
    tokens_cached: int = 0
    ended: bool = False

    def __post_init__(self) -> None:
        self.distinct = self.rows

    def cut(self, budget: ForwardBudget, cached: int) -> None:
        """Divide the distinct rows into pieces; the job must not be queued.

        Args:
            cached: prefix tokens that the prefix cache has now.
        """
        self.large = not budget.fits(len(self.distinct.tokens), self.distinct.num_reads)
        self.cached_tokens = cached
        self.pieces = split_request(self.distinct, budget, cached if self.large else 0)

    def has_prefix_of(self, other: Job) -> bool:
        """Whether both jobs have the same prefix, computed with the same adapter."""
        own, others = (job.rows.tokens[: job.rows.prefix_len] for job in (self, other))
        return self.rows.adapter == other.rows.adapter and np.array_equal(own, others)

    def restart(self) -> None:
        """Forget the results of the job's earlier forwards; the caller has ended `held`."""
        self.next_piece = 0
        self.attempt += 1
        self.tokens_cached = 0
        self.values.clear()

    @property
    def piece(self) -> Piece:
        """What the next forward of the job computes."""
        return self.pieces[self.next_piece]

    @property
    def divided(self) -> bool:
        """Whether the job takes several forwards."""
        return len(self.pieces) > 1

    @property
    def launched(self) -> bool:
        """Whether every forward of the job was launched."""
        return self.next_piece == len(self.pieces)

    @property
    def completed(self) -> bool:
        """Whether every forward of the job has delivered its values."""
        return len(self.values) == len(self.pieces)

    @property
    def remaining_tokens(self) -> int:
        """Tokens that are still to be computed, if no prefix is shared with another job.

        Tokens of rows that came before count as cached.
        """
        if self.large or self.next_piece:
            return self._tokens_left
        seen = self.rows_seen
        of_rows = 0 if seen is None else int((seen[seen > 0] - self.distinct.prefix_len).sum())
        return self._tokens_left - self.cached_tokens - of_rows

    @property
    def load(self) -> QueueLoad:
        """What the job adds to the queue while it waits.

        Cached tokens count, too: they may be evicted before the job runs.
        """
        return QueueLoad(self._tokens_left, self.arrived.rows, self.arrived.bytes)

    @property
    def _tokens_left(self) -> int:
        return sum(piece.num_tokens for piece in self.pieces[self.next_piece :])

    def answer(self) -> Float32Array:
        """The values of all rows, row by row, once `completed`."""
        values = np.concatenate(self.values)
        return values if self.value_places is None else values[self.value_places]

    def result(
        self,
        status: Status,
        message: str = "",
        *,
        retry_after_s: float = 0.0,
        longest_row: int = 0,
        no_cache: bool = False,
    ) -> PackedResult:
        """The result of a job that ends now; it must be `completed` if the status is OK."""
        now = time.monotonic()
        start = now if self.start_s is None else self.start_s
        return PackedResult(
            status=status,
            message=message,
            values=values_to_bytes(self.answer()) if status is Status.OK else b"",
            forwards=self.forwards,
            tokens_computed=self.tokens_computed,
            queue_ms=(start - self.arrival_s) * 1e3,
            compute_ms=(now - start) * 1e3,
            retry_after_s=retry_after_s,
            tokens_cached=self.tokens_cached,
            longest_row=longest_row,
            no_cache=no_cache,
        )
