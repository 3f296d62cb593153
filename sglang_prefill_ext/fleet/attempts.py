"""Has one part of a request served: sends it to a replica, and to a second one if necessary."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from sglang_prefill_ext.attach.carrier import PartAnswer
from sglang_prefill_ext.errors import EngineUnavailableError
from sglang_prefill_ext.fleet.loads import NO_ENGINE, Loads
from sglang_prefill_ext.fleet.planning.cost import RowCosts, Rows
from sglang_prefill_ext.fleet.planning.planner import ReplicaState
from sglang_prefill_ext.fleet.replica import Replica
from sglang_prefill_ext.fleet.replica_load import ReplicaLoad
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows, to_bytes
from sglang_prefill_ext.wire.parts import take_rows
from sglang_prefill_ext.wire.status import Status

logger = logging.getLogger(__name__)

_BROKEN = (Status.FAILED, Status.REJECTED, Status.UNREACHABLE)

_AGAIN = (*_BROKEN, Status.DECLINED, Status.UNFIT)
"""Ends after which another replica is asked, as what a replica can do is found out by itself. After
any other end, it would answer the same."""

_NAMED = (*_BROKEN, Status.ABORTED, Status.EXPIRED)
"""Ends whose message is for the user, and so names the part."""

_LOOK_S = 0.2
"""How often it is checked whether an unanswered part is late."""


Choice: TypeAlias = tuple[str, ReplicaState]


class RowsPart:
    """The rows for one replica, and their bytes.

    Args:
        rows: the whole request.
        costs: of all its rows.
        numbers: indices of the rows of this part.
        number, of: which part of how many.
    """

    def __init__(
        self, rows: PackedRows, costs: RowCosts, numbers: Rows, number: int, of: int
    ) -> None:
        taken = take_rows(rows, numbers)
        self.body, self.tokens = to_bytes(taken), len(taken.tokens)
        self.numbers = numbers
        self._costs = costs
        self._which = "" if of == 1 else f"Part {number + 1} of {of} ({len(numbers)} rows, at "

    def cost_s(self, state: ReplicaState) -> float:
        return self._costs.part_s(state.speed, self.numbers, prefix_cached=state.has_prefix)

    def soonest(self, choices: list[Choice]) -> Choice | None:
        """Return the replica where the part is done first; None if there is none."""

        def end_s(choice: Choice) -> float:
            return choice[1].outstanding_s + self.cost_s(choice[1])

        return min(choices, key=end_s, default=None)

    def failed(self, replica: str, status: Status, why: str) -> PartAnswer:
        """Return what stands for the answer of a replica that gave none."""
        return self.named(replica, PartAnswer(PackedResult(status, why)))

    def named(self, replica: str, answer: PartAnswer) -> PartAnswer:
        """Return the answer; a message that is for the user names the part."""
        result = answer.result
        if not self._which or result.status not in _NAMED:
            return answer
        message = f"{self._which}{replica}): {result.message}"
        return PartAnswer(PackedResult(result.status, message, retry_after_s=result.retry_after_s))


class _Attempt(NamedTuple):
    replica: str
    load: ReplicaLoad
    ticket: int


class _Asking:
    """One part under way, and its answers.

    Attributes:
        running: what replicas were asked, and have not answered.
        answer: the first good one, else the last bad one; None before any.
    """

    def __init__(self, part: RowsPart, options: RequestOptions) -> None:
        self.running: dict[asyncio.Task[PartAnswer], _Attempt] = {}
        self.answer: PartAnswer | None = None
        self._part, self._options = part, options
        self._failed: list[ReplicaLoad] = []

    @property
    def status(self) -> Status | None:
        """Of the answer."""
        return None if self.answer is None else self.answer.result.status

    @property
    def is_answered(self) -> bool:
        return self.status not in (None, *_AGAIN)

    def begin(self, choice: Choice, replica: Replica, load: ReplicaLoad) -> None:
        name, state = choice
        ticket = load.sent(self._part.cost_s(state), time.monotonic(), self._part.tokens)
        task = asyncio.ensure_future(replica.ask(self._part.body, self._options))
        self.running[task] = _Attempt(name, load, ticket)

    async def wait(self) -> None:
        """Wait until an attempt has ended, but for `_LOOK_S` at most."""
        done, _ = await asyncio.wait(
            self.running, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:
            attempt = self.running.pop(task)
            answer = self._ended(attempt, task)
            if answer.result.status is Status.FAILED:
                self._failed.append(attempt.load)
            if not self.is_answered:
                self.answer = answer

    def close(self) -> None:
        """Cancel what is under way, and record who has failed while another has answered."""
        now_s = time.monotonic()
        for task, attempt in self.running.items():
            task.cancel()
            if attempt.load.is_late(now_s):
                self._failed.append(attempt.load)
            attempt.load.cancelled(attempt.ticket, now_s)
        if self.is_answered:  # else the client has left, or all have failed
            for load in self._failed:
                load.failed(now_s)

    def _ended(self, attempt: _Attempt, task: asyncio.Task[PartAnswer]) -> PartAnswer:
        """Record how an attempt has ended; an error in its result names the part."""
        now_s, (replica, load, ticket) = time.monotonic(), attempt
        try:
            answer = task.result()
        except EngineUnavailableError as error:
            load.ended(ticket, now_s, ok=False)
            logger.warning("Engine %s: %s", replica, error)
            return self._part.failed(replica, Status.UNREACHABLE, str(error))
        except Exception as error:  # a defect of ours, not a failure of the replica
            load.cancelled(ticket, now_s)
            logger.exception("A part of a request could not be served")
            return self._part.failed(replica, Status.FAILED, f"{type(error).__name__}: {error}")
        if answer.result.status is Status.OK:
            load.ended(ticket, now_s, ok=True)
        else:
            load.cancelled(ticket, now_s)  # it has not computed the part
        return self._part.named(replica, answer)


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

    async def ask(self, part: RowsPart, first: Choice, options: RequestOptions) -> PartAnswer:
        """Have one part served, and return the first good answer, or the last bad one."""
        choice = first if first[0] in self._loads else part.soonest(self._choices())
        if choice is None:  # all have gone since this was planned
            return part.failed(first[0], Status.UNREACHABLE, NO_ENGINE)
        asking, tried, second = _Asking(part, options), choice[0], None
        self._begin(asking, choice)
        try:
            while asking.running and not asking.is_answered:
                await asking.wait()
                if second is None and not asking.is_answered:
                    second = self._second(part, tried, asking)
                    if second is not None:
                        self.counts["asked_twice" if asking.running else "retried"] += 1
                        self._begin(asking, second)
        finally:
            asking.close()
        assert asking.answer is not None, "an attempt has ended"
        return asking.answer

    def _begin(self, asking: _Asking, choice: Choice) -> None:
        name, _ = choice
        asking.begin(choice, self._replicas[name], self._loads[name])
        self.counts["parts"] += 1

    def _second(self, part: RowsPart, tried: str, asking: _Asking) -> Choice | None:
        """Choose whom to ask as well, or after the first has failed; None for nobody."""
        if asking.running:
            return self._sooner(part, tried)
        return self._other(part, tried, asking.status)

    def _other(self, part: RowsPart, tried: str, status: Status | None) -> Choice | None:
        """Choose the replica that is asked again for a part that failed; None if there is none.

        It is another replica. If there is no other and only the connection broke, the same one is
        asked again, as its engine may still run.
        """
        choices = self._choices()
        others = [each for each in choices if each[0] != tried]
        if not others and status is Status.UNREACHABLE:
            others = choices
        return part.soonest(others)

    def _sooner(self, part: RowsPart, tried: str) -> Choice | None:
        """Choose a replica to ask as well, if that of a part is late or gone and others are up."""
        load = self._loads.get(tried)
        if load is not None and not load.is_late(time.monotonic()):
            return None
        choices = self._choices()
        if any(name == tried for name, _ in choices):
            return None  # the late one is still available, so no replica is up
        return part.soonest(choices)

    def _choices(self) -> list[Choice]:
        states = self._loads.snapshot(time.monotonic()).states
        return [each for each in states.items() if each[1].available]
