"""Divide the rows of a request over replicas, so that the whole of it is answered soonest. Pure.

`levels` say which replicas are of use, and `assignment` gives them rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.fleet.planning.assignment import Floats, assign, ends_of
from sglang_prefill_ext.fleet.planning.cost import RowCosts, Rows, Speed
from sglang_prefill_ext.fleet.planning.levels import levels_of, most_useful
from sglang_prefill_ext.shared_device.balance import soonest

MAX_PARTS = 128
"""Of one request; more replicas than that, the soonest free, are not looked at."""

WORTH = 0.1
"""Every second of extra work must bring the answer at least so many seconds forward. A fleet of
idle replicas would else repeat launch and prefix for next to nothing."""

_LEAST_EXTRA_WORK = 0.02  # of a busy fleet: as little as costs are known to
_FEW_ROWS = 8  # a part; from there on whole rows make little difference


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """What is known of a replica when a request is planned.

    Attributes:
        outstanding_s: until it has computed what it was sent.
        speed: as it is now.
        has_prefix: it has the K/V of the request's prefix.
        available: it may get work.
    """

    outstanding_s: float
    speed: Speed
    has_prefix: bool = False
    available: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What one replica computes of a request.

    Attributes:
        replica: its place in what the planner was given.
        rows: row numbers, ascending; int64 ``[rows]``, at least one.
        cost_s: predicted seconds on that replica, what waits there left out.
    """

    replica: int
    rows: Rows
    cost_s: float


def allowed_extra_work(utilisation: float) -> float:
    """How much extra work a request may cause, as a share of the work of sending it whole.

    Half of the capacity that idles, by request: of a fleet that is busy for a share ``u`` of the
    time, dividing all requests takes it to ``u + (1 - u) / 2`` at most. So a fleet that divides
    its requests is never overloaded by that. At 0.2 two times the work is allowed, at 0.5 half of
    it, at 0.9 a twentieth, and at 1 requests stay whole.

    Args:
        utilisation: share of the time for which replicas are busy, 0 to 1.
    """
    return max(_LEAST_EXTRA_WORK, (1 - utilisation) / (2 * max(utilisation, 1e-3)))


def plan(
    costs: RowCosts,
    replicas: Sequence[ReplicaState],
    *,
    extra_work: float,
    worth: float = WORTH,
) -> list[Part]:
    """Choose replicas and their rows.

    The request stays whole unless parts end sooner, by at least `worth` of the extra work. Extra
    work is what launches and repeated prefixes add to that of sending it whole.

    Args:
        extra_work: most extra work, as a share of the whole request's; see `allowed_extra_work`.
            Below 0 the request stays whole, even where parts would add none.
        worth: see `WORTH`.

    Returns:
        Parts that have every row exactly once, in the order of `replicas`; none where no replica
        is available.
    """
    if not any(each.available for each in replicas):
        return []
    fleet = _Fleet.of(costs, replicas).soonest_free(MAX_PARTS)
    whole = fleet.soonest_whole()
    owner = _division(fleet, whole, extra_work, worth)
    if owner is None:
        return [_part(costs, replicas, int(fleet.numbers[whole]), np.arange(len(costs)))]
    return [
        _part(costs, replicas, int(fleet.numbers[place]), np.flatnonzero(owner == place))
        for place in np.unique(owner).tolist()
    ]


def _part(costs: RowCosts, replicas: Sequence[ReplicaState], number: int, rows: Rows) -> Part:
    replica = replicas[number]
    cost_s = costs.part_s(replica.speed, rows, prefix_cached=replica.has_prefix)
    return Part(number, rows, cost_s)


@dataclass(frozen=True, slots=True, eq=False)
class _Fleet:
    """Replicas that may get parts; float64 ``[replicas]`` where nothing else is said.

    Seconds of work are those of a replica of mean speed, if they are not said to be a replica's
    own. Rows that take 1.2 times as long on one replica are taken to do so whatever their length:
    exact where speeds differ by a factor, close where attention and tokens differ apart.

    Attributes:
        numbers: places in what the planner was given; int64.
        weights: work of every row; ``[rows]``.
        waiting: own seconds until it is free.
        overhead: own seconds of a launch, and of the prefix unless that is cached.
        saved: own seconds of the prefix, where it is cached.
        slowness: own seconds for a second of work.
    """

    numbers: NDArray[np.int64]
    weights: Floats
    waiting: Floats
    overhead: Floats
    saved: Floats
    slowness: Floats

    @classmethod
    def of(cls, costs: RowCosts, replicas: Sequence[ReplicaState]) -> _Fleet:
        numbers = [number for number, each in enumerate(replicas) if each.available]
        waiting, cached = np.array(
            [(replicas[each].outstanding_s, replicas[each].has_prefix) for each in numbers]
        ).T
        speeds = [replicas[each].speed for each in numbers]
        launch, token, pair, most = np.array(
            [(each.launch_s, each.token_s, each.pair_s, each.max_forward_tokens) for each in speeds]
        ).T
        tokens, pairs = int(costs.tokens.sum()), int(costs.pairs.sum())
        weights = (costs.tokens * token.sum() + costs.pairs * pair.sum()) / len(speeds)
        further = np.maximum(0, (costs.prefix_tokens + tokens) / most - 1)
        own = tokens * token + pairs * pair + further * launch
        prefix = costs.prefix_tokens * token + costs.prefix_pairs * pair
        times = (waiting, launch + (1 - cached) * prefix, cached * prefix, own / weights.sum())
        return cls(np.array(numbers, dtype=np.int64), weights, *times)

    def soonest_free(self, count: int) -> _Fleet:
        """At most so many of them."""
        if len(self.numbers) <= count:
            return self
        near = np.sort(self.starts.argpartition(count)[:count])
        times = (self.waiting, self.overhead, self.saved, self.slowness)
        return _Fleet(self.numbers[near], self.weights, *(each[near] for each in times))

    @property
    def starts(self) -> Floats:
        """Own seconds until it computes a first row."""
        return self.waiting + self.overhead

    def soonest_whole(self) -> int:
        """Where the request ends first if it stays whole."""
        uncached = self.starts + self.saved + self.slowness * self.weights.sum()
        return soonest(uncached, self.saved)


def _division(fleet: _Fleet, whole: int, extra_work: float, worth: float) -> Rows | None:
    """Return the place in the fleet of every row; None where the request should stay whole."""
    if extra_work < 0 or min(len(fleet.numbers), len(fleet.weights)) == 1:
        return None
    starts, work = fleet.starts, float(fleet.weights.sum())
    rates = 1 / fleet.slowness
    overheads = fleet.overhead * rates
    chosen = most_useful(starts, rates, work)[: len(fleet.weights)]
    levels = levels_of(starts[chosen], rates[chosen], work)
    longest = (starts + fleet.weights.max() * fleet.slowness)[chosen].min()
    extra = np.maximum(0, overheads[chosen].cumsum() - overheads[whole])
    allowed = extra_work * (work + overheads[whole])
    prices = np.maximum(levels, longest) + worth * extra
    prices[extra > allowed] = np.inf
    best, owner = starts[whole] + work * fleet.slowness[whole], None
    count = int(prices.argmin()) + 1
    while count > 1 and prices[count - 1] < best:
        own = chosen[:count]
        places = assign(fleet.weights, starts[own], fleet.slowness[own])
        end = float(ends_of(places, fleet.weights, starts[own], fleet.slowness[own]).max())
        price = end + worth * float(extra[count - 1])
        if price >= best:
            break
        best, owner = price, own[places]
        # As whole rows end later than the level, fewer parts may do as well.
        fewer = int((levels > end * (1 + 1e-9)).sum()) + 1
        count = fewer if len(fleet.weights) < _FEW_ROWS * count and fewer < count else 0
    return owner
