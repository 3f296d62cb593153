"""Estimates a replica's speed, outstanding work and health from its parts and answers. No clock."""

from __future__ import annotations

import math
from typing import NamedTuple

from sglang_prefill_ext.fleet.health import Failures, Health
from sglang_prefill_ext.fleet.planning.cost import Computed, Speed
from sglang_prefill_ext.fleet.recent_speed import RecentSpeed

_GRACE_S = 0.5
"""Besides twice the expected time, how long a replica may be silent before it is suspect."""


class _Sent(NamedTuple):
    cost: float
    tokens: int


class ReplicaLoad:
    """The parts that one replica computes, and what they tell of it.

    Costs are in seconds at the speed that the replica was added with. The order of answers does not
    matter, so replicas may join and reorder waiting parts.

    Attributes:
        draining: it gets no more work, but may finish what it has.
        halted: it says that it computes nothing for now, so it gets work only if no other can.
        speed: how fast it has been recently.
    """

    def __init__(self, speed: Speed, now_s: float) -> None:
        self.draining = self.halted = False
        self.speed = RecentSpeed(speed)
        self._sent: dict[int, _Sent] = {}
        self._outstanding = 0.0
        self._others_s, self._reported_s = 0.0, now_s
        self._others_before_s = 0.0  # the most of it at any time since the last progress
        self._seen_s = self._asked_s = self._progress_s = now_s
        self._unanswered_busy_s = self._untold_busy_s = 0.0
        self._others_prevailed = False  # at any time since the last answer
        self._failures = Failures()
        self._newest = self._newest_at_failure = -1

    @property
    def parts(self) -> int:
        """Parts that were sent there and have not come back."""
        return len(self._sent)

    @property
    def tokens(self) -> int:
        """Of these parts."""
        return sum(each.tokens for each in self._sent.values())

    def sent(self, cost_s: float, now_s: float, tokens: int = 0) -> int:
        """Count a part that the replica has been sent.

        Args:
            cost_s: predicted seconds there, > 0, without the work that waits there.

        Returns:
            The ticket to end it with, by `ended` or `cancelled`.
        """
        self._pass(now_s)
        if not self._sent:
            self._advance(now_s)
        self._newest += 1
        cost = cost_s / self.speed.ratio
        self._sent[self._newest] = _Sent(cost, tokens)
        self._outstanding += cost
        return self._newest

    def ended(self, ticket: int, now_s: float, ok: bool) -> None:
        """Record that a part has come back.

        Args:
            ok: the replica has computed it. False if it could not be reached, or refused. Other
                parts that it had at that time and that fail as well count as the same failure.
        """
        if not ok:
            self.cancelled(ticket, now_s)
            if ticket > self._newest_at_failure:  # else this is part of the last failure
                self._newest_at_failure = self._newest
                self._failures.add(now_s, parts=1)
            return
        self._pass(now_s)
        longest = max(each.cost for each in self._sent.values())
        cost = self._forget(ticket)
        if not self._others_prevailed:
            self.speed.answered(cost, self._unanswered_busy_s, longest)
        self._unanswered_busy_s, self._others_prevailed = 0.0, False
        self._advance(now_s)
        self._failures = Failures()

    def failed(self, now_s: float) -> None:
        """Record a failure: another replica has answered a part that failed here, or was late."""
        self._failures.add(now_s, parts=1)

    def cancelled(self, ticket: int, now_s: float) -> None:
        """Record that a part will not be computed, which says nothing about the replica."""
        self._pass(now_s)
        if ticket == next(iter(self._sent)):
            # The parts behind it were not computed meanwhile, so this time must not make them late.
            spent_s = min(now_s - self._progress_s, self._next_answer_s)
            self._progress_s += spent_s
            self._unanswered_busy_s = max(0.0, self._unanswered_busy_s - spent_s)
        self._forget(ticket)
        if not self._sent:
            # No answer will tell what this time was spent on.
            self._unanswered_busy_s, self._others_prevailed = 0.0, False

    def reported(self, others_s: float, now_s: float) -> None:
        """Record how much work the replica has that did not come from here.

        Args:
            others_s: that work, in seconds at the speed that it was added with; below 0 for none.
        """
        self._pass(now_s)
        self._others_s, self._reported_s = others_s * self.speed.ratio, now_s
        self._others_before_s = max(self._others_before_s, self._others_s)

    def computed(self, so_far: Computed, now_s: float) -> None:
        """Record what the replica has computed so far, for whomever."""
        others_prevail = self._others_at(now_s) > self._outstanding * self.speed.ratio
        self.speed.computed(so_far, counts=others_prevail)

    def probed(self, now_s: float, ok: bool) -> None:
        """Record whether the replica answered a question that takes no work.

        An answer brings back a replica that was down. Otherwise failures of parts still count.
        """
        if not ok:
            self._failures.add(now_s, probes=1)
        elif self._failures.are_final:
            self._failures = Failures()
        else:
            self._failures.probes = 0

    def health(self, now_s: float) -> Health:
        return Health.DRAINING if self.draining else self._own_health(now_s)

    def is_late(self, now_s: float) -> bool:
        """Whether another replica should be asked as well for a part of this one.

        It should if this one is not up. One that leaves may still be up.
        """
        return self._own_health(now_s) is not Health.UP

    def outstanding_s(self, now_s: float) -> float:
        """Predicted seconds until it has computed all that it has.

        It is assumed to work at its oldest part since its last progress (an answer, or a cancelled
        part). If that part is overdue by some time, it is expected to take as much time again, and
        all work behind it is expected to take longer in proportion.
        """
        others_s = self._others_at(now_s)
        if not self._sent:
            return others_s
        silent_s, expected_s = now_s - self._progress_s, self._next_answer_s
        behind_s = self._outstanding * self.speed.ratio - expected_s
        if silent_s <= expected_s:
            return expected_s - silent_s + behind_s + others_s
        return silent_s - expected_s + behind_s * (silent_s / expected_s) + others_s

    def passed_s(self, now_s: float) -> tuple[float, float]:
        """Return the busy time since the last call of this method, and the whole time since it."""
        self._pass(now_s)
        busy_s, self._untold_busy_s = self._untold_busy_s, 0.0
        asked_s, self._asked_s = self._asked_s, now_s
        return busy_s, now_s - asked_s

    @property
    def _next_answer_s(self) -> float:
        """Expected seconds of the oldest part."""
        return next(iter(self._sent.values())).cost * self.speed.ratio

    def _pass(self, now_s: float) -> None:
        """Account for the time since the last event.

        It is divided between parts from here and those of others in proportion to what waits.
        """
        passed_s, self._seen_s = now_s - self._seen_s, now_s
        own_s = self._outstanding * self.speed.ratio
        others_s = self._others_at(now_s - passed_s)
        if self._sent:
            self._unanswered_busy_s += passed_s * own_s / (own_s + others_s)
            self._untold_busy_s += passed_s
            self._others_prevailed |= others_s > own_s
        else:
            self._untold_busy_s += min(passed_s, others_s)

    def _own_health(self, now_s: float) -> Health:
        """Its health, apart from whether it is to leave.

        It is suspect if its oldest part takes twice as long as expected, with others' work before,
        or if it is halted.
        """
        if self._failures.are_final:
            return Health.DOWN
        silent_s, patience_s = now_s - self._progress_s, math.inf
        if self._sent:
            patience_s = 2 * (self._next_answer_s + self._others_before_s) + _GRACE_S
        may_work = silent_s <= patience_s and now_s >= self._failures.retry_s and not self.halted
        return Health.UP if may_work else Health.SUSPECT

    def _advance(self, now_s: float) -> None:
        self._progress_s, self._others_before_s = now_s, self._others_at(now_s)

    def _others_at(self, time_s: float) -> float:
        """Work of others at a time: what was reported last, less the time that has passed since."""
        return max(0.0, self._others_s - (time_s - self._reported_s))

    def _forget(self, ticket: int) -> float:
        cost = self._sent.pop(ticket).cost
        self._outstanding = self._outstanding - cost if self._sent else 0.0
        return cost
