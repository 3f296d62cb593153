"""What every replica has to compute yet, how fast it is, and whether it can be trusted. Pure."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass

from sglang_prefill_ext.fleet.planning.cost import Speed
from sglang_prefill_ext.fleet.planning.planner import ReplicaState
from sglang_prefill_ext.fleet.replica_load import Health, ReplicaLoad

NO_ENGINE = "No engine of the fleet can be reached. Try again later."

_UTILISATION_MEMORY_S = 1.0
"""After which a time counts 1/e in the utilisation."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All replicas at one time, as the planner takes them.

    Attributes:
        replicas: their ids; `Part.replica` is a place in this.
        states: one each.
        utilisation: share of the recent time for which replicas were busy, 0 to 1.
    """

    replicas: list[str]
    states: list[ReplicaState]
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
        """A replica has come, or one of that id has restarted: nothing of before counts.

        Tickets of before may still be ended; that changes nothing.
        """
        self.remove(replica)
        self._replicas[replica] = ReplicaLoad(speed, now_s)

    def remove(self, replica: str) -> None:
        """A replica has gone for good; it need not be known."""
        gone = self._replicas.pop(replica, None)
        for ticket in gone.tickets if gone else ():
            del self._sent_to[ticket]

    def sent(self, replica: str, cost_s: float, now_s: float) -> int:
        """Count a part that a replica has been sent.

        Args:
            cost_s: `Part.cost_s`, > 0, as it was planned with the state of that replica.

        Returns:
            The ticket to end it with.
        """
        ticket = self._next_ticket
        self._next_ticket += 1
        load = self._sent_to[ticket] = self._replicas[replica]
        load.sent(ticket, cost_s, now_s)
        return ticket

    def ended(self, ticket: int, now_s: float, ok: bool) -> None:
        """A part has come back.

        Args:
            ok: the replica has answered, be it with an error that is the request's own; false where
                it could not be reached, or refused. Parts that were there then and end like that
                as well are the same failure.
        """
        if (load := self._sent_to.pop(ticket, None)) is not None:
            load.ended(ticket, now_s, ok)

    def given_up(self, ticket: int, now_s: float) -> None:
        """A part has waited for too long, and another replica has answered it: a failure."""
        if (load := self._sent_to.pop(ticket, None)) is not None:
            load.given_up(ticket, now_s)

    def cancelled(self, ticket: int, now_s: float) -> None:
        """A part is not wanted any more; says nothing of the replica."""
        if (load := self._sent_to.pop(ticket, None)) is not None:
            load.cancelled(ticket, now_s)

    def reported(self, replica: str, outstanding_s_of_others: float, now_s: float) -> None:
        """A replica tells how much work it has that did not come from here, in its own seconds at
        the speed that it was added with."""
        self._replicas[replica].reported(outstanding_s_of_others, now_s)

    def probed(self, replica: str, now_s: float, ok: bool) -> None:
        """A question that takes no work was answered, or not; brings back one that was down."""
        self._replicas[replica].probed(now_s, ok)

    def drain(self, replica: str) -> None:
        """Send it nothing more; what it has it may end."""
        self._replicas[replica].draining = True

    def health(self, replica: str, now_s: float) -> Health:
        return self._replicas[replica].health(now_s)

    def is_late(self, replica: str, now_s: float) -> bool:
        """Whether a part there is better asked for elsewhere as well: the replica is not up, or not
        known any more. One that leaves may still be up."""
        load = self._replicas.get(replica)
        return load is None or load.own_health(now_s) is not Health.UP

    def in_flight(self, replica: str) -> int:
        """Parts that were sent there and have not come back."""
        return len(self._replicas[replica].tickets)

    def snapshot(self, now_s: float, with_prefix: Container[str] = ()) -> Snapshot:
        """Return all replicas as they are now.

        Those that are up may get work; where none is up, those that are suspect.

        Args:
            with_prefix: ids of the replicas that have the prefix of the request.
        """
        healths = [each.health(now_s) for each in self._replicas.values()]
        wanted = Health.UP if Health.UP in healths else Health.SUSPECT
        states = [
            ReplicaState(
                each.outstanding_s(now_s),
                each.current_speed,
                name in with_prefix,
                health is wanted,
            )
            for (name, each), health in zip(self._replicas.items(), healths, strict=True)
        ]
        return Snapshot(list(self._replicas), states, self._utilisation(states, now_s))

    def _utilisation(self, states: list[ReplicaState], now_s: float) -> float:
        """Busy time of late by that of replicas that may get work; 0 before any has passed."""
        kept = math.exp(min(0.0, self._looked_s - now_s) / _UTILISATION_MEMORY_S)
        all_passed_s = [each.passed_s(now_s) for each in self._replicas.values()]
        passed_s = [
            each for each, state in zip(all_passed_s, states, strict=True) if state.available
        ]
        self._recent_busy_s = kept * self._recent_busy_s + sum(busy_s for busy_s, _ in passed_s)
        self._recent_s = kept * self._recent_s + sum(all_s for _, all_s in passed_s)
        self._looked_s = now_s
        return min(1.0, self._recent_busy_s / self._recent_s) if self._recent_s > 0 else 0.0
