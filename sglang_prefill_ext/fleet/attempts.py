"""Has one part of a request served: sends it to a replica, and to a second one if necessary."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

from sglang_prefill_ext.attach.carrier import PartAnswer
from sglang_prefill_ext.errors import EngineUnavailableError
from sglang_prefill_ext.fleet.loads import NO_ENGINE, Loads
from sglang_prefill_ext.fleet.planning.cost import RowCosts, Rows
from sglang_prefill_ext.fleet.planning.planner import ReplicaState
from sglang_prefill_ext.fleet.replica import Replica
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows, to_bytes
from sglang_prefill_ext.wire.parts import take_rows
from sglang_prefill_ext.wire.status import Status

logger = logging.getLogger(__name__)

_AGAIN = (Status.FAILED, Status.REJECTED, Status.UNREACHABLE)
"""Ends after which another replica is asked; after any other end, it would answer the same."""

_NAMED = (*_AGAIN, Status.ABORTED, Status.EXPIRED)
"""Ends whose message is for the user, and so names the part."""

_LOOK_S = 0.2
"""How often it is checked whether an unanswered part is late."""


@dataclass(frozen=True, slots=True, eq=False)
class RowsPart:
    """The rows for one replica, and their bytes.

    Attributes:
        number, of: which part of how many.
        numbers: indices of its rows in the request.
        costs: of all rows of the request.
        tokens: how many tokens the part has.
    """

    number: int
    of: int
    numbers: Rows
    costs: RowCosts
    body: bytes
    tokens: int

    @classmethod
    def made(
        cls, rows: PackedRows, costs: RowCosts, numbers: Rows, number: int, of: int
    ) -> RowsPart:
        taken = take_rows(rows, numbers)
        body = to_bytes(taken)
        return cls(number, of, numbers, costs, body, len(taken.tokens))


class _Attempt(NamedTuple):
    replica: str
    ticket: int


Choice: TypeAlias = tuple[str, ReplicaState]


class Attempts:
    """Has parts served, each by at most two replicas.

    Args:
        replicas: has all that `loads` has.

    Attributes:
        counts: of `parts` that were sent, `retried` and `asked_twice`, and of requests.
    """

    def __init__(self, replicas: Mapping[str, Replica], loads: Loads) -> None:
        self.counts: Counter[str] = Counter()
        self._replicas = replicas
        self._loads = loads
        self._own_tokens: Counter[str] = Counter()

    def others_tokens(self, replica: str, told: int) -> int:
        """How many of the `told` tokens that a replica has did not come from this router."""
        return max(0, told - self._own_tokens[replica])

    async def ask(
        self, part: RowsPart, first: str, state: ReplicaState, options: RequestOptions
    ) -> PackedResult:
        """Have one part served, and return the first good answer, or the last bad one."""
        running: dict[asyncio.Task[PartAnswer], _Attempt] = {}
        tried: list[str] = []

        def begin(replica: str, state: ReplicaState) -> None:
            tried.append(replica)
            attempt = self._send(part, replica, state)
            task = asyncio.ensure_future(self._replicas[replica].ask(part.body, options))
            running[task] = attempt

        if first not in self._loads:  # it has gone since this was planned
            choice = min(self._choices(), key=partial(_end_s, part), default=None)
            if choice is None:
                return _named(part, first, PackedResult(Status.UNREACHABLE, NO_ENGINE))
            first, state = choice
        begin(first, state)
        try:
            while True:
                done, _ = await asyncio.wait(
                    running, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    result = self._ended(part, running.pop(task), task)
                    if result.status not in _AGAIN:
                        return result
                    last = result
                if len(tried) == 1:
                    other = self._sooner(part, first) if running else self._other(part, last, first)
                    if other is not None:
                        self.counts["asked_twice" if running else "retried"] += 1
                        begin(*other)
                if not running:
                    return last
        finally:
            for task, attempt in running.items():
                task.cancel()
                self._give_up(part, attempt)

    def _send(self, part: RowsPart, replica: str, state: ReplicaState) -> _Attempt:
        cost_s = part.costs.part_s(state.speed, part.numbers, prefix_cached=state.has_prefix)
        ticket = self._loads.sent(replica, cost_s, time.monotonic())
        self.counts["parts"] += 1
        self._own_tokens[replica] += part.tokens
        return _Attempt(replica, ticket)

    def _ended(
        self, part: RowsPart, attempt: _Attempt, task: asyncio.Task[PartAnswer]
    ) -> PackedResult:
        """Record how an attempt has ended; an error in its result names the part."""
        now_s, (replica, ticket) = time.monotonic(), attempt
        self._own_tokens[replica] -= part.tokens
        try:
            answer = task.result()
        except EngineUnavailableError as error:
            self._loads.ended(ticket, now_s, ok=False)
            logger.warning("Engine %s: %s", replica, error)
            return _named(part, replica, PackedResult(Status.UNREACHABLE, str(error)))
        except Exception as error:  # a defect of ours, not a failure of the replica
            self._loads.cancelled(ticket, now_s)
            logger.exception("A part of a request could not be served")
            why = f"{type(error).__name__}: {error}"
            return _named(part, replica, PackedResult(Status.FAILED, why))
        if answer.result.status is Status.REJECTED:
            self._loads.cancelled(ticket, now_s)  # it is full, not broken
        else:
            self._loads.ended(ticket, now_s, ok=True)
        return _named(part, replica, answer.result)

    def _give_up(self, part: RowsPart, attempt: _Attempt) -> None:
        now_s, (replica, ticket) = time.monotonic(), attempt
        self._own_tokens[replica] -= part.tokens
        if replica in self._loads and self._loads.is_late(replica, now_s):
            self._loads.given_up(ticket, now_s)
        else:
            self._loads.cancelled(ticket, now_s)

    def _other(self, part: RowsPart, last: PackedResult, tried: str) -> Choice | None:
        """Choose the replica that is asked again for a part that failed; None if there is none.

        It is another replica. If there is no other and only the connection broke, the same one is
        asked again, as its engine may still run.
        """
        choices = self._choices()
        others = [each for each in choices if each[0] != tried]
        if not others and last.status is Status.UNREACHABLE:
            others = choices
        return min(others, key=partial(_end_s, part), default=None)

    def _sooner(self, part: RowsPart, tried: str) -> Choice | None:
        """Choose a replica to ask as well, if that of a part is late or gone and others are up."""
        if not self._loads.is_late(tried, time.monotonic()):
            return None
        choices = self._choices()
        if any(name == tried for name, _ in choices):
            return None  # the late one is still available, so no replica is up
        return min(choices, key=partial(_end_s, part), default=None)

    def _choices(self) -> list[Choice]:
        states = self._loads.snapshot(time.monotonic()).states
        return [each for each in states.items() if each[1].available]


def _named(part: RowsPart, replica: str, result: PackedResult) -> PackedResult:
    if part.of == 1 or result.status not in _NAMED:
        return result
    which = f"Part {part.number + 1} of {part.of} ({len(part.numbers)} rows, at {replica})"
    return PackedResult(
        result.status, f"{which}: {result.message}", retry_after_s=result.retry_after_s
    )


def _end_s(part: RowsPart, choice: Choice) -> float:
    state = choice[1]
    return state.outstanding_s + part.costs.part_s(state.speed, part.numbers)
