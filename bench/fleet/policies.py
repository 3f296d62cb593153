"""Who gets which rows: the planner of the fleet, and what others do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sglang_prefill_ext.fleet.loads import Loads
from sglang_prefill_ext.fleet.planning.cost import RowCosts, Rows, Speed
from sglang_prefill_ext.fleet.planning.planner import ReplicaState, allowed_extra_work, plan


@dataclass(frozen=True, slots=True, eq=False)
class Sending:
    """A part on its way; the ticket is the policy's own."""

    replica: int
    rows: Rows
    ticket: int = -1


class Policy(Protocol):
    """Chooses replicas, and hears of the answers."""

    def send(self, costs: RowCosts, now_s: float) -> list[Sending]:
        """Return parts that have every row once; none if it knows of no replica to send to."""
        ...

    def ended(self, part: Sending, now_s: float, *, ok: bool) -> None: ...

    def revived(self, replica: int, now_s: float) -> None:
        """A replica that was dead has restarted."""
        ...


class Truth(Protocol):
    """The fleet as it is; all but the usual speed of a replica only an oracle may ask."""

    load: float
    speed: Speed

    def states(self, now_s: float) -> Sequence[ReplicaState]:
        """Exact states, with the times that the next request will take."""
        ...


class _Whole:
    """Requests stay whole, and go to a replica at random.

    Counts what is in flight. A replica that has failed gets nothing until it is revived.
    """

    def __init__(self, replicas: int, rng: np.random.Generator) -> None:
        self._up, self._rng = np.arange(replicas), rng
        self._in_flight = np.zeros(replicas, dtype=np.int64)
        self._turn = 0

    def choose(self) -> int:
        return int(self._rng.choice(self._up))

    def send(self, costs: RowCosts, now_s: float) -> list[Sending]:
        return [self._sending(self.choose(), np.arange(len(costs)))]

    def ended(self, part: Sending, now_s: float, *, ok: bool) -> None:
        self._in_flight[part.replica] -= 1
        if not ok:
            self._up = self._up[self._up != part.replica]

    def revived(self, replica: int, now_s: float) -> None:
        self._up = np.union1d(self._up, [replica])

    def _sending(self, replica: int, rows: Rows) -> Sending:
        self._in_flight[replica] += 1
        return Sending(replica, rows)


class RoundRobin(_Whole):
    def choose(self) -> int:
        self._turn += 1
        return int(self._up[self._turn % len(self._up)])


class PowerOfTwo(_Whole):
    """Of two at random, the one with fewer requests."""

    def choose(self) -> int:
        two = self._rng.choice(self._up, 2, replace=False)
        return int(two[self._in_flight[two].argmin()])


class LeastRequests(_Whole):
    """Of equals one at random."""

    def choose(self) -> int:
        waiting = self._in_flight[self._up]
        return int(self._rng.choice(self._up[waiting == waiting.min()]))


class SplitByCount(_Whole):
    """Parts of equally many items, each to a replica at random.

    Args:
        items: of a part, at most.
    """

    def __init__(self, replicas: int, rng: np.random.Generator, items: int) -> None:
        super().__init__(replicas, rng)
        self._items = items

    def send(self, costs: RowCosts, now_s: float) -> list[Sending]:
        parts = -(-len(costs) // self._items)
        return [
            self._sending(self.choose(), rows)
            for rows in np.array_split(np.arange(len(costs)), parts)
        ]


class Planned:
    """The planner and the loads that the router has."""

    def __init__(self, replicas: int, speed: Speed) -> None:
        self.loads, self._speed = Loads(), speed
        for replica in range(replicas):
            self.loads.add(str(replica), speed, 0.0)

    def send(self, costs: RowCosts, now_s: float) -> list[Sending]:
        now = self.loads.snapshot(now_s)
        parts = plan(costs, now.states, extra_work=allowed_extra_work(now.utilisation))
        return [
            Sending(
                int(now.replicas[part.replica]),
                part.rows,
                self.loads.sent(now.replicas[part.replica], part.cost_s, now_s),
            )
            for part in parts
        ]

    def ended(self, part: Sending, now_s: float, *, ok: bool) -> None:
        self.loads.ended(part.ticket, now_s, ok)

    def revived(self, replica: int, now_s: float) -> None:
        self.loads.remove(str(replica))
        self.loads.add(str(replica), self._speed, now_s)


class Oracle:
    """The same planner, which knows how long everything will take."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth

    def send(self, costs: RowCosts, now_s: float) -> list[Sending]:
        states = self._truth.states(now_s)
        parts = plan(costs, states, extra_work=allowed_extra_work(self._truth.load))
        return [Sending(part.replica, part.rows) for part in parts]

    def ended(self, part: Sending, now_s: float, *, ok: bool) -> None:
        pass

    def revived(self, replica: int, now_s: float) -> None:
        pass


Make = Callable[[int, np.random.Generator, Truth], Policy]

POLICIES: dict[str, Make] = {
    "random": lambda replicas, rng, _: _Whole(replicas, rng),
    "round robin": lambda replicas, rng, _: RoundRobin(replicas, rng),
    "power of two": lambda replicas, rng, _: PowerOfTwo(replicas, rng),
    "least requests": lambda replicas, rng, _: LeastRequests(replicas, rng),
    "split by count, 16": lambda replicas, rng, _: SplitByCount(replicas, rng, 16),
    "split by count, 64": lambda replicas, rng, _: SplitByCount(replicas, rng, 64),
    "planned": lambda replicas, _, truth: Planned(replicas, truth.speed),
    "oracle": lambda _, __, truth: Oracle(truth),
}
