"""The simulation: replicas that serve parts in the order of an engine, on a simulated clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bench.fleet.policies import POLICIES, Policy, Sending
from bench.fleet.traffic import Scenario, Traffic
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.fleet.planning.cost import RowCosts, Rows
from sglang_prefill_ext.fleet.planning.planner import ReplicaState

NOISE = 0.05
"""Standard deviation of the logarithm of a part's true time over the predicted one."""

RETRY_S = 0.01  # time until a refused part is sent again
AGEING = PrefillOnlyConfig().ageing


@dataclass(slots=True, eq=False)
class _Asked:
    """A part at its replica.

    Attributes:
        rows: numbers of its rows in the whole request.
        forwards: number of forwards still to run, each of `forward_s` and `forward_tokens`.
    """

    request: int
    part: Sending
    rows: Rows
    forwards: int = 0
    forward_s: float = 0.0
    forward_tokens: int = 0


_Entry: TypeAlias = tuple[float, int, _Asked]
"""The key of a part, its place in the order of arrival, and the part."""


@dataclass(slots=True, eq=False)
class _Replica:
    """Runs one forward at a time, of the part that comes first by `scheduling.queue`'s srpt.

    Attributes:
        begun: the one part, if any, that waits and has run some of its forwards.
        waiting: all other parts, by their keys, then by arrival.
        free_s: time at which all its parts will be done.
        processed: tokens processed so far; the keys measure time by them.
    """

    slowness: float
    alive: bool = True
    free_s: float = 0.0
    processed: int = 0
    running: _Asked | None = None
    begun: _Entry | None = None
    waiting: list[_Entry] = field(default_factory=list)

    def take(self) -> _Entry | None:
        """Remove the part whose turn it is; None if no part waits.

        A part of several forwards starts only if no other has begun, see `policy.in_turn`.
        """
        first, begun = self.waiting[0] if self.waiting else None, self.begun
        if begun is None or (first is not None and first < begun and first[2].forwards == 1):
            return heappop(self.waiting) if first else None
        self.begun = None
        return begun


class Simulation:
    """One policy and its traffic; `run` serves it to the end."""

    def __init__(
        self, policy: str, traffic: Traffic, scenario: Scenario, replicas: int, seed: int
    ) -> None:
        self.load, self.speed = traffic.load, traffic.speed
        self._traffic, self._seed = traffic, seed
        self._replicas = [_Replica(1.0) for _ in range(replicas)]
        self._replicas[0].slowness = scenario.slow
        self._policy: Policy = POLICIES[policy](replicas, np.random.default_rng(seed + 1), self)
        self._events: list[tuple[float, int, Any, tuple[Any, ...]]] = []
        self._numbers = count()  # events at the same time happen in the order of their creation
        self._missing = [len(each) for each in traffic.requests]
        self._latency_s = np.zeros(len(traffic.requests))
        self._noise: NDArray[np.float64] = np.ones(replicas)
        self.sent_s, self.parts, self.resent = 0.0, 0, 0
        for number, arrival_s in enumerate(traffic.arrival_s.tolist()):
            rows = np.arange(self._missing[number])
            self._at(arrival_s, self._ask, number, rows)
        if scenario.dies:
            end_s = float(traffic.arrival_s[-1])
            self._at(end_s / 3, self._die, replicas - 1)
            self._at(end_s * 2 / 3, self._revive, replicas - 1)

    def run(self) -> NDArray[np.float64]:
        """Return the latency of every request, in seconds."""
        while self._events:
            now_s, _, act, arguments = heappop(self._events)
            act(now_s, *arguments)
        assert not any(self._missing), "a request was not answered"
        return self._latency_s

    def states(self, now_s: float) -> list[ReplicaState]:
        """See `policies.Truth`."""
        return [
            ReplicaState(
                max(0.0, each.free_s - now_s),
                self.speed.slowed(each.slowness * float(noise)),
                available=each.alive,
            )
            for each, noise in zip(self._replicas, self._noise, strict=True)
        ]

    def _at(self, time_s: float, act: Any, *arguments: Any) -> None:
        heappush(self._events, (time_s, next(self._numbers), act, arguments))

    def _ask(self, now_s: float, number: int, rows: Rows) -> None:
        whole = self._traffic.requests[number]
        costs = RowCosts(whole.prefix_tokens, whole.tokens[rows], whole.pairs[rows])
        rng = np.random.default_rng((self._seed, number))
        self._noise = np.exp(rng.normal(0, NOISE, len(self._replicas)))
        parts = self._policy.send(costs, now_s)
        if not parts:
            self._at(now_s + RETRY_S, self._ask, number, rows)
        for part in parts:
            asked = _Asked(number, part, rows[part.rows])
            if self._replicas[part.replica].alive:
                self._compute(now_s, asked, costs)
            else:
                self._fail(now_s, asked)

    def _compute(self, now_s: float, asked: _Asked, costs: RowCosts) -> None:
        replica = self._replicas[asked.part.replica]
        cost_s = costs.part_s(self.speed, asked.part.rows)
        true_s = cost_s * replica.slowness * float(self._noise[asked.part.replica])
        tokens = int(costs.tokens[asked.part.rows].sum()) + costs.prefix_tokens
        asked.forwards = -(-tokens // self.speed.max_forward_tokens)
        asked.forward_s = true_s / asked.forwards
        asked.forward_tokens = tokens // asked.forwards
        replica.free_s = max(replica.free_s, now_s) + true_s
        self.sent_s += cost_s
        self.parts += 1
        key = replica.processed + AGEING * tokens
        heappush(replica.waiting, (key, next(self._numbers), asked))
        self._launch(now_s, replica)

    def _launch(self, now_s: float, replica: _Replica) -> None:
        if replica.running is None and (entry := replica.take()):
            replica.running = entry[2]
            self._at(now_s + entry[2].forward_s, self._collect, replica, entry)

    def _collect(self, now_s: float, replica: _Replica, entry: _Entry) -> None:
        key, number, asked = entry
        if replica.running is not asked:
            return  # the replica has died meanwhile
        replica.running = None
        replica.processed += asked.forward_tokens
        asked.forwards -= 1
        if asked.forwards:
            # A job is queued again by what is left of it.
            replica.begun = (key - AGEING * asked.forward_tokens, number, asked)
        else:
            self._answer(now_s, asked)
        self._launch(now_s, replica)

    def _answer(self, now_s: float, asked: _Asked) -> None:
        self._policy.ended(asked.part, now_s, ok=True)
        self._missing[asked.request] -= len(asked.rows)
        if not self._missing[asked.request]:
            arrival_s = self._traffic.arrival_s[asked.request]
            self._latency_s[asked.request] = now_s - arrival_s

    def _fail(self, now_s: float, asked: _Asked) -> None:
        self._policy.ended(asked.part, now_s, ok=False)
        self.resent += 1
        self._at(now_s + RETRY_S, self._ask, asked.request, asked.rows)

    def _die(self, now_s: float, number: int) -> None:
        replica = self._replicas[number]
        waiting = replica.waiting if replica.begun is None else [*replica.waiting, replica.begun]
        failed = [asked for _, _, asked in sorted(waiting)]
        if replica.running is not None:
            failed.insert(0, replica.running)
        replica.alive, replica.free_s = False, 0.0
        replica.running, replica.begun, replica.waiting = None, None, []
        for asked in failed:
            self._fail(now_s, asked)

    def _revive(self, now_s: float, number: int) -> None:
        self._replicas[number].alive = True
        self._policy.revived(number, now_s)
