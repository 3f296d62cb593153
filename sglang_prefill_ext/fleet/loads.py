"""Tracks the outstanding work, the speed and the health of every replica. No clock, no I/O."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from sglang_prefill_ext.fleet.health import Health
from sglang_prefill_ext.fleet.planning.planner import ReplicaState
from sglang_prefill_ext.fleet.replica_load import ReplicaLoad

NO_ENGINE = "No engine of the fleet can be used; /prefill_only/status says why. Try again later."

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


class Loads(dict[str, ReplicaLoad]):
    """The replicas of a fleet that are in use, by id.

    Times are seconds of any clock that does not go back. Not safe across threads.

    Args:
        preference: decides which replica is chosen of several that are as good. Routers should
            have different numbers, as none sees at once what others have sent. 0: the first one.
    """

    def __init__(self, preference: int = 0) -> None:
        super().__init__()
        self._preference = preference
        self._recent_busy_s = self._recent_s = 0.0
        self._looked_s = 0.0

    def snapshot(self, now_s: float, with_prefix: Container[ReplicaLoad] = ()) -> Snapshot:
        """Return all replicas as they are now.

        Replicas that are up may get work; if none is up, those that are suspect may.

        Args:
            with_prefix: the replicas that have the prefix of the request.
        """
        loads = list(self.items())
        if self._preference:
            loads.sort(key=lambda each: _place(self._preference, each[0]))
        healths = {name: load.health(now_s) for name, load in loads}
        wanted = Health.UP if Health.UP in healths.values() else Health.SUSPECT
        states = {
            name: ReplicaState(
                load.outstanding_s(now_s),
                load.speed.now,
                has_prefix=load in with_prefix,
                available=healths[name] is wanted,
            )
            for name, load in loads
        }
        return Snapshot(states, self._utilisation(states, now_s))

    def _utilisation(self, states: dict[str, ReplicaState], now_s: float) -> float:
        """Recent busy time of replicas that may get work, as a share of their recent time.

        0 before any time has passed.
        """
        kept = math.exp(min(0.0, self._looked_s - now_s) / _UTILISATION_MEMORY_S)
        all_passed_s = {name: each.passed_s(now_s) for name, each in self.items()}
        passed_s = [each for name, each in all_passed_s.items() if states[name].available]
        self._recent_busy_s = kept * self._recent_busy_s + sum(busy_s for busy_s, _ in passed_s)
        self._recent_s = kept * self._recent_s + sum(all_s for _, all_s in passed_s)
        self._looked_s = now_s
        return min(1.0, self._recent_busy_s / self._recent_s) if self._recent_s > 0 else 0.0


@lru_cache(maxsize=4096)
def _place(preference: int, name: str) -> bytes:
    """A replica's place in the order of a router, which tells nothing of that in another one.

    Python's `hash` mixes a pair of numbers too little for that.
    """
    return blake2b(f"{preference} {name}".encode(), digest_size=8).digest()
