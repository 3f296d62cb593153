"""Policies that choose replicas for rows: the planner of the fleet, and other balancers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sglang_prefill_ext.fleet.loads import Loads
from sglang_prefill_ext.fleet.planning.cost import RowCosts, Rows, Speed
from sglang_prefill_ext.fleet.planning.planner import ReplicaState, allowed_extra_work, plan
from sglang_prefill_ext.fleet.replica_load import ReplicaLoad


@dataclass(frozen=True, slots=True, eq=False)
class Sending:
    """A part that is sent to a replica; `ticket` is for the policy's own use."""

    replica: int
    rows: Rows
    ticket: int = -1


class Policy(Protocol):
    """Chooses replicas, and is told of answers, failures and restarts."""

    def send(self, costs: RowCosts, now_s: float) -> list[Sending]:
        """Divide a request into parts that have every row once; empty if no replica is known."""
        ...

    def ended(self, part: Sending, now_s: float, *, ok: bool) -> None: ...

    def revived(self, replica: int, now_s: float) -> None:
        """A replica that was dead has restarted."""
        ...


class Truth(Protocol):
    """The simulated fleet. Only an oracle may read more than `speed`, a replica's usual speed."""

    load: float
    speed: Speed

    def states(self, now_s: float) -> Sequence[ReplicaState]:
        """The exact state of each replica, with the true times that the next request will take."""
        ...


class _Whole:
    """Sends each request whole to a random replica.

    It counts requests in flight. A replica that has failed gets no request until it is revived.
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
    """Draws two replicas at random, and sends to the one with fewer requests in flight."""

    def choose(self) -> int:
        two = self._rng.choice(self._up, 2, replace=False)
        return int(two[self._in_flight[two].argmin()])


class LeastRequests(_Whole):
    """Sends to a replica with the fewest requests in flight; a random one if there are several."""

    def choose(self) -> int:
        waiting = self._in_flight[self._up]
        return int(self._rng.choice(self._up[waiting == waiting.min()]))


class SplitByCount(_Whole):
    """Divides a request into parts of equally many items, each for a random replica.

    Args:
        items: most items of a part.
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
    """The router's own planner and estimate of loads."""

    def __init__(self, replicas: int, speed: Speed) -> None:
        self.loads, self._speed = Loads(), speed
        for replica in range(replicas):
            self.loads[str(replica)] = ReplicaLoad(speed, 0.0)

    def send(self, costs: RowCosts, now_s: float) -> list[Sending]:
        now = self.loads.snapshot(now_s)
        names, states = list(now.states), list(now.states.values())
        sent = []
        for part in plan(costs, states, extra_work=allowed_extra_work(now.utilisation)):
            name, cost_s = names[part.replica], costs.part_s(states[part.replica].speed, part.rows)
            ticket = self.loads[name].sent(cost_s, now_s)
            sent.append(Sending(int(name), part.rows, ticket))
        return sent

    def ended(self, part: Sending, now_s: float, *, ok: bool) -> None:
        self.loads[str(part.replica)].ended(part.ticket, now_s, ok)

    def revived(self, replica: int, now_s: float) -> None:
        self.loads.pop(str(replica))
        self.loads[str(replica)] = ReplicaLoad(self._speed, now_s)


class Oracle:
    """The same planner, with the true state of the fleet instead of an estimate."""

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
