"""Tracks the outstanding work, the speed and the health of every replica. Pure."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass

from sglang_prefill_ext.fleet.planning.cost import Speed
from sglang_prefill_ext.fleet.planning.planner import ReplicaState
from sglang_prefill_ext.fleet.replica_load import Health, ReplicaLoad

NO_ENGINE = "No engine of the fleet can be reached. Try again later."

_UTILISATION_MEMORY_S = 1.0
"""Time constant of the utilisation: what happened so long ago counts 1/e."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The states of all replicas at one time, for the planner.

    Attributes:
        states: by id; `Part.replica` is a place in their order.
        utilisation: share of the recent time for which replicas were busy, 0 to 1.
    """

    states: dict[str, ReplicaState]
    utilisation: float


class Loads:
    """The replicas of a fleet, by id, and the parts that they compute.

    Times are seconds of any clock that does not go back. Not safe across threads.
    """

    def __init__(self) -> None:
        self._replicas: dict[str, ReplicaLoad] = {}
        self._sent_to: dict[int, ReplicaLoad] = {}
        self._next_ticket = 0
        self._recent_busy_s = self._recent_s = 0.0
        self._looked_s = 0.0

    def __contains__(self, replica: str) -> bool:
        return replica in self._replicas

    def add(self, replica: str, speed: Speed, now_s: float) -> None:
        """Add a replica, or one that has restarted under the same id, of which all is forgotten.

        Tickets of the old one may still be ended, without effect.
        """
        self.remove(replica)
        self._replicas[replica] = ReplicaLoad(speed, now_s)

    def remove(self, replica: str) -> None:
        """Remove a replica that has gone for good; it need not be known."""
        gone = self._replicas.pop(replica, None)
        for ticket in gone.tickets if gone else ():
            del self._sent_to[ticket]

    def sent(self, replica: str, cost_s: float, now_s: float) -> int:
        """Count a part that a replica has been sent.

        Args:
            cost_s: predicted seconds on that replica, > 0, without the work that waits there.

        Returns:
            The ticket to end it with.
        """
        ticket = self._next_ticket
        self._next_ticket += 1
        load = self._sent_to[ticket] = self._replicas[replica]
        load.sent(ticket, cost_s, now_s)
        return ticket

    def ended(self, ticket: int, now_s: float, ok: bool) -> None:
        """Record that a part has come back.

        Args:
            ok: the replica has answered, even if with an error of the request itself. False if it
                could not be reached, or refused. Other parts that it had at that time and that fail
                as well count as the same failure.
        """
        if (load := self._sent_to.pop(ticket, None)) is not None:
            load.ended(ticket, now_s, ok)

    def given_up(self, ticket: int, now_s: float) -> None:
        """Record a failure: a part waited for too long, and another replica has answered it."""
        if (load := self._sent_to.pop(ticket, None)) is not None:
            load.given_up(ticket, now_s)

    def cancelled(self, ticket: int, now_s: float) -> None:
        """Record that a part is not wanted any more, which says nothing about the replica."""
        if (load := self._sent_to.pop(ticket, None)) is not None:
            load.cancelled(ticket, now_s)

    def reported(self, replica: str, outstanding_s_of_others: float, now_s: float) -> None:
        """Record how much work a replica has that did not come from here.

        Args:
            outstanding_s_of_others: that work, in seconds at the speed that it was added with.
        """
        self._replicas[replica].reported(outstanding_s_of_others, now_s)

    def probed(self, replica: str, now_s: float, ok: bool) -> None:
        """Record whether a replica answered a question that takes no work.

        An answer brings back a replica that was down.
        """
        self._replicas[replica].probed(now_s, ok)

    def drain(self, replica: str) -> None:
        """Give a replica no more work; it may finish what it has."""
        self._replicas[replica].draining = True

    def health(self, replica: str, now_s: float) -> Health:
        return self._replicas[replica].health(now_s)

    def is_late(self, replica: str, now_s: float) -> bool:
        """Whether another replica should be asked as well for a part of this one.

        It should if this one is not up, or not known any more. One that leaves may still be up.
        """
        load = self._replicas.get(replica)
        return load is None or load.own_health(now_s) is not Health.UP

    def in_flight(self, replica: str) -> int:
        """Parts that were sent there and have not come back."""
        return len(self._replicas[replica].tickets)

    def snapshot(self, now_s: float, with_prefix: Container[str] = ()) -> Snapshot:
        """Return all replicas as they are now.

        Replicas that are up may get work; if none is up, those that are suspect may.

        Args:
            with_prefix: ids of the replicas that have the prefix of the request.
        """
        healths = [each.health(now_s) for each in self._replicas.values()]
        wanted = Health.UP if Health.UP in healths else Health.SUSPECT
        states = {
            name: ReplicaState(
                each.outstanding_s(now_s),
                each.current_speed,
                name in with_prefix,
                health is wanted,
            )
            for (name, each), health in zip(self._replicas.items(), healths, strict=True)
        }
        return Snapshot(states, self._utilisation(states, now_s))

    def _utilisation(self, states: dict[str, ReplicaState], now_s: float) -> float:
        """Recent busy time of replicas that may get work, as a share of their recent time.

        0 before any time has passed.
        """
        kept = math.exp(min(0.0, self._looked_s - now_s) / _UTILISATION_MEMORY_S)
        all_passed_s = {name: each.passed_s(now_s) for name, each in self._replicas.items()}
        passed_s = [each for name, each in all_passed_s.items() if states[name].available]
        self._recent_busy_s = kept * self._recent_busy_s + sum(busy_s for busy_s, _ in passed_s)
        self._recent_s = kept * self._recent_s + sum(all_s for _, all_s in passed_s)
        self._looked_s = now_s
        return min(1.0, self._recent_busy_s / self._recent_s) if self._recent_s > 0 else 0.0
