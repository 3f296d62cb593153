"""Serves one packed request by several engines: divides it, sends the parts, joins the results."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Mapping

from sglang_prefill_ext.attach.carrier import PartAnswer
from sglang_prefill_ext.errors import DeadlineExceededError, EngineUnavailableError
from sglang_prefill_ext.fleet.attempts import Attempts, Choice, RowsPart
from sglang_prefill_ext.fleet.loads import NO_ENGINE, Loads
from sglang_prefill_ext.fleet.planning.cost import RowCosts
from sglang_prefill_ext.fleet.planning.planner import allowed_extra_work, plan
from sglang_prefill_ext.fleet.replica import Replica
from sglang_prefill_ext.fleet.replica_load import ReplicaLoad
from sglang_prefill_ext.frontend.client_wait import within
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.shared_device.balance import Homes
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows
from sglang_prefill_ext.wire.parts import is_divisible, join_results
from sglang_prefill_ext.wire.prefix_policy import BLOCK_TOKENS
from sglang_prefill_ext.wire.status import Status

_WHOLE = -1.0
"""A limit of extra work that no division meets, so the request stays whole."""

_LATE_MS = 50.0
"""How long an engine may take to report that a deadline has passed."""

_MOST_TIMES = 1 << 16
"""Most latencies that wait to be taken."""


class Dispatcher:
    """Serves packed requests by the replicas of `loads`.

    Args:
        replicas: has all that `loads` has.
        extra_work: most extra work of a division, as a share of the request's; None leaves it to
            how busy the fleet is.

    Attributes:
        took_s: latencies of answered requests, for whoever takes them out.
    """

    def __init__(
        self, replicas: Mapping[str, Replica], loads: Loads, extra_work: float | None = None
    ) -> None:
        self.loads = loads
        self.attempts = Attempts(replicas, loads)
        self.took_s: deque[float] = deque(maxlen=_MOST_TIMES)
        self._extra_work = extra_work
        self._homes: Homes[frozenset[ReplicaLoad]] = Homes()

    async def answer(self, rows: PackedRows, options: RequestOptions) -> PackedResult:
        """Serve a request; errors become a result, too. No part of it is under way afterwards."""
        late = options.deadline_ms and options.deadline_ms + _LATE_MS
        begin_s = time.monotonic()
        try:
            async with within(late, "before all of its parts were answered"):
                answer = await self._answer(rows, options)
        except DeadlineExceededError as error:
            return PackedResult(Status.EXPIRED, str(error))
        except EngineUnavailableError as error:
            return PackedResult(Status.UNREACHABLE, str(error))
        if answer.status is Status.OK:
            self.took_s.append(time.monotonic() - begin_s)
        return answer

    async def _answer(
        self, rows: PackedRows, options: RequestOptions, *, whole: bool = False
    ) -> PackedResult:
        costs = RowCosts.of(rows.prefix_len, rows.suffix_lens)
        key = _prefix_key(rows)
        home = (key and self._homes.get(key)) or frozenset()
        snapshot = self.loads.snapshot(time.monotonic(), home)
        extra_work = _WHOLE if whole or not is_divisible(rows) else self._extra_work
        if extra_work is None:
            extra_work = allowed_extra_work(snapshot.utilisation)
        choices = list(snapshot.states.items())
        planned = plan(costs, [state for _, state in choices], extra_work=extra_work)
        if not planned:
            raise EngineUnavailableError(NO_ENGINE)
        firsts = [choices[each.replica] for each in planned]
        home |= {self.loads[name] for name, _ in firsts}
        parts = [
            RowsPart(rows, costs, each.rows, number, len(planned))
            for number, each in enumerate(planned)
        ]
        self.attempts.counts["requests"] += not whole
        self.attempts.counts["divided"] += len(parts) > 1
        found = await self._all(parts, firsts, options)
        answers = [each.result for each in found]
        if answers[0].status is not Status.OK:
            return answers[0]
        if len({each.weights for each in found}) > 1:
            # An engine got other weights, which its next state would have told.
            return await self._answer(rows, options, whole=True)
        if key and answers[0].tokens_cached:
            self._homes.remember(key, home.intersection(self.loads.values()))
        return join_results(rows, list(zip([each.numbers for each in parts], answers, strict=True)))

    async def _all(
        self, parts: list[RowsPart], firsts: list[Choice], options: RequestOptions
    ) -> list[PartAnswer]:
        """Return the answers to all parts; or only the first bad one, and cancel the others."""
        if len(parts) == 1:
            return [await self.attempts.ask(parts[0], firsts[0], options)]
        tasks = [
            asyncio.ensure_future(self.attempts.ask(part, first, options))
            for part, first in zip(parts, firsts, strict=True)
        ]
        try:
            for ended in asyncio.as_completed(tasks):
                if (answer := await ended).result.status is not Status.OK:
                    return [answer]
            return [task.result() for task in tasks]
        finally:
            for task in tasks:
                task.cancel()


def _prefix_key(rows: PackedRows) -> bytes | None:
    """Return a digest of adapter and prefix; None if the prefix is too short for a prefix cache."""
    if rows.prefix_len < BLOCK_TOKENS:
        return None
    digest = hashlib.blake2b(rows.adapter.encode(), digest_size=16)
    digest.update(rows.tokens[: rows.prefix_len].tobytes())
    return digest.digest()
