"""Draw the faults of a run: their kinds, times, lengths and targets (pure)."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Kinds of faults. What was stopped continues by itself; what was killed is started again."""

    SCHEDULER_STOPPED = "scheduler stopped"
    ENGINE_STOPPED = "engine stopped"
    ENGINE_KILLED = "engine killed"
    ENGINE_CUT = "engine's connections cut"
    ENGINE_SILENT = "engine's connections silent"
    ROUTER_STOPPED = "router stopped"
    ROUTER_KILLED = "router killed"
    ROUTER_TERMINATED = "router terminated"
    CLIENTS_CUT = "clients' connections cut"


SHARES = {
    Kind.SCHEDULER_STOPPED: 220,
    Kind.ENGINE_STOPPED: 130,
    Kind.ENGINE_CUT: 238,
    Kind.ENGINE_SILENT: 130,
    Kind.ROUTER_STOPPED: 80,
    Kind.ROUTER_KILLED: 80,
    Kind.ROUTER_TERMINATED: 40,
    Kind.CLIENTS_CUT: 75,
    Kind.ENGINE_KILLED: 7,
}
"""Kind -> number among a thousand faults. Killed engines are rare because a start takes a minute or
more; all other faults are short."""

_SHORT_S, _LONG_S = (0.1, 1.5), (3.0, 6.0)
_LONG_SHARE = 0.05
_ROUTER_S = (0.1, 1.0)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault.

    Attributes:
        pause_s: time between the beginnings of the fault before and of this one.
        seconds: how long something is stopped or silent; without meaning for other kinds.
        target: index of the engine, wire or router, modulo their number; those that have a fault
            already are not counted.
    """

    kind: Kind
    pause_s: float = 0.0
    seconds: float = 0.0
    target: int = 0


def draw_faults(count: int, minutes: float, seed: int) -> list[Fault]:
    """Draw faults in the proportions of `SHARES`.

    Engines are killed at even distances, so that some engines are always alive.

    Returns:
        `count` of them, which begin within about `minutes`.
    """
    rng = random.Random(seed)
    kinds = [kind for kind, share in SHARES.items() for _ in range(share * count // 1000)]
    kinds += rng.choices([*SHARES][:5], k=count - len(kinds))
    deaths = kinds.count(Kind.ENGINE_KILLED)
    kinds = [kind for kind in kinds if kind is not Kind.ENGINE_KILLED]
    rng.shuffle(kinds)
    for number in range(deaths):
        kinds.insert((2 * number + 1) * count // (2 * deaths), Kind.ENGINE_KILLED)
    mean_s = 60 * minutes / count
    return [
        Fault(kind, mean_s * rng.uniform(0.2, 1.8), _seconds(kind, rng), rng.randrange(1 << 16))
        for kind in kinds
    ]


def _seconds(kind: Kind, rng: random.Random) -> float:
    if kind is Kind.ROUTER_STOPPED:
        return rng.uniform(*_ROUTER_S)
    return rng.uniform(*(_LONG_S if rng.random() < _LONG_SHARE else _SHORT_S))
