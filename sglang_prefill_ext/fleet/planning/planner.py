"""Divides the rows of a request over replicas, so that the whole of it is answered soonest. Pure.

`levels` says which replicas are of use, and `assignment` gives them rows.
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
"""Most parts of one request; only so many replicas, those free soonest, are considered."""

WORTH = 0.1
"""Every second of extra work must bring the answer forward by at least so many seconds. Otherwise a
fleet of idle replicas would repeat launches and prefixes for almost nothing."""

_LEAST_EXTRA_WORK = 0.02  # allowed even in a busy fleet: costs are not known more precisely
_FEW_ROWS = 8  # per part; with more rows it matters little that they cannot be cut


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """What is known of a replica when a request is planned.

    Attributes:
        outstanding_s: seconds until it has computed all that it has.
        speed: its current one.
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
        replica: its index among the replicas that the planner was given.
        rows: row numbers, ascending; int64 ``[rows]``, at least one.
    """

    replica: int
    rows: Rows


def allowed_extra_work(utilisation: float) -> float:
    """How much extra work a request may cause, as a share of the work of sending it whole.

    Extra work may take half of the idle capacity: if a fleet is busy for a share ``u`` of the time,
    dividing all requests makes it busy for ``u + (1 - u) / 2`` at most. So dividing never overloads
    a fleet. At 0.2 two times the work is allowed, at 0.5 half of it, at 0.9 a twentieth, and at 1
    only `_LEAST_EXTRA_WORK`.

    Args:
        utilisation: share of the time for which replicas are busy, 0 to 1.
    """
    return max(_LEAST_EXTRA_WORK, (1 - utilisation) / (2 * max(utilisation, 1e-3)))


def plan(costs: RowCosts, replicas: Sequence[ReplicaState], *, extra_work: float) -> list[Part]:
    """Choose replicas and their rows.

    The request stays whole unless parts end sooner, by at least `WORTH` of the extra work. Extra
    work is what launches and repeated prefixes add to that of sending it whole.

    Args:
        extra_work: most extra work, as a share of the whole request's; see `allowed_extra_work`.
            Below 0 the request stays whole, even where parts would add none.

    Returns:
        Parts that have every row exactly once, in the order of `replicas`; none if no replica is
        available.
    """
    if not any(each.available for each in replicas):
        return []
    fleet = _Fleet.of(costs, replicas).soonest_free(MAX_PARTS)
    whole = fleet.soonest_whole()
    owner = _division(fleet, whole, extra_work)
    if owner is None:
        return [Part(int(fleet.numbers[whole]), np.arange(len(costs)))]
    return [
        Part(int(fleet.numbers[place]), np.flatnonzero(owner == place))
        for place in np.unique(owner).tolist()
    ]


@dataclass(frozen=True, slots=True, eq=False)
class _Fleet:
    """The replicas that may get parts, as arrays; float64 ``[replicas]`` unless stated otherwise.

    Work is in seconds of a replica of mean speed, and "own seconds" are those of the replica
    itself. Each replica has one slowness for rows of all lengths. This is exact if speeds differ
    by a factor, and close if those of attention and of tokens differ by different factors.

    Attributes:
        numbers: indices among the replicas that the planner was given; int64.
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
        """The `count` replicas that can begin soonest; all if there are no more."""
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
        """Index of the replica on which the whole request ends first."""
        uncached = self.starts + self.saved + self.slowness * self.weights.sum()
        return soonest(uncached, self.saved)


def _division(fleet: _Fleet, whole: int, extra_work: float) -> Rows | None:
    """Return the index in the fleet of every row's replica; None if the request stays whole."""
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
    prices = np.maximum(levels, longest) + WORTH * extra
    prices[extra > allowed] = np.inf
    best, owner = starts[whole] + work * fleet.slowness[whole], None
    count = int(prices.argmin()) + 1
    while count > 1 and prices[count - 1] < best:
        own = chosen[:count]
        places = assign(fleet.weights, starts[own], fleet.slowness[own])
        end = float(ends_of(places, fleet.weights, starts[own], fleet.slowness[own]).max())
        price = end + WORTH * float(extra[count - 1])
        if price >= best:
            break
        best, owner = price, own[places]
        # Rows cannot be cut, so parts end later than the level, and fewer of them may do as well.
        fewer = int((levels > end * (1 + 1e-9)).sum()) + 1
        count = fewer if len(fleet.weights) < _FEW_ROWS * count and fewer < count else 0
    return owner
