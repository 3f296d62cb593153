"""Random traffic of a fleet, and scenarios of what goes wrong meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.fleet.planning.cost import RowCosts, Speed

SPEED = Speed(
    launch_s=0.005,
    token_s=1 / 25_000,
    pair_s=(4 * 32 * 4096) / (2 * 8e9) / 25_000,  # 32 layers with 32 heads of 128
    max_forward_tokens=PrefillOnlyConfig().max_forward_tokens,
)
"""A guess at a model of 8 billion parameters in bf16 on one H100."""

MEAN_TOKENS = 576
SPREAD = 0.6  # standard deviation of the logarithm of an item's length

Draw: TypeAlias = Callable[[np.random.Generator], RowCosts]


def _lens(rng: np.random.Generator, items: int) -> NDArray[np.int64]:
    lens = rng.lognormal(np.log(MEAN_TOKENS) - SPREAD**2 / 2, SPREAD, items)
    return np.maximum(1, lens.astype(np.int64))


def _many(rng: np.random.Generator) -> RowCosts:
    return RowCosts.of(60, _lens(rng, int(rng.integers(16, 401))))


def _mixed(rng: np.random.Generator) -> RowCosts:
    return _many(rng) if rng.random() < 0.1 else RowCosts.of(60, _lens(rng, 1))


WORKLOADS: dict[str, Draw] = {
    "60+576x16..400": _many,
    "120+180x10": lambda _: RowCosts.of(120, np.full(180, 10)),
    "50+150x50": lambda _: RowCosts.of(50, np.full(150, 50)),
    "mixed": _mixed,
}
"""In the last workload, nine of ten requests have one item; the others are like the first."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What goes wrong during the traffic.

    Attributes:
        slow: how many times slower the first replica is; policies are not told.
        dies: whether the last replica is dead from one third to two thirds of the time. Its parts
            fail.
        burst: how many times faster the middle tenth of the requests arrives.
    """

    name: str
    slow: float = 1.0
    dies: bool = False
    burst: float = 1.0


SCENARIOS = {
    each.name: each
    for each in (
        Scenario("usual"),
        Scenario("half speed", slow=2.0),
        Scenario("one dies", dies=True),
        Scenario("burst", burst=3.0),
    )
}


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests in order of arrival.

    Attributes:
        load: work of the requests, sent whole, over what the fleet can do.
        speed: usual speed of a replica.
    """

    load: float
    arrival_s: NDArray[np.float64]
    requests: list[RowCosts]
    speed: Speed = SPEED

    @property
    def whole_s(self) -> NDArray[np.float64]:
        """Seconds of each request if it is sent whole to an idle replica."""
        return np.array([each.part_s(self.speed) for each in self.requests])


def draw_traffic(
    workload: str,
    scenario: Scenario,
    load: float,
    replicas: int,
    requests: int,
    seed: int,
    speed: Speed = SPEED,
) -> Traffic:
    """Draw requests and Poisson arrivals; the requests are the same at every load."""
    rng = np.random.default_rng(seed)
    drawn = [WORKLOADS[workload](rng) for _ in range(requests)]
    mean_s = np.mean([each.part_s(speed) for each in drawn])
    capacity = replicas - 1 + 1 / scenario.slow
    gaps_s = rng.exponential(mean_s / (load * capacity), requests)
    gaps_s[requests * 9 // 20 : requests * 11 // 20] /= scenario.burst
    return Traffic(load, gaps_s.cumsum(), drawn, speed)
