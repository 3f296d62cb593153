"""Divides the rows of a request over replicas, so that the whole of it is answered soonest. Pure.

`levels` says which replicas are of use, and `assignment` gives them rows. Replicas are few, so they
are lists of floats: a call of numpy costs as much as a dozen of them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import accumulate
from operator import attrgetter
from statistics import fmean
from typing import NamedTuple

import numpy as np

from sglang_prefill_ext.fleet.planning.assignment import Floats, assign, ends_of
from sglang_prefill_ext.fleet.planning.cost import RowCosts, Rows, Speed
from sglang_prefill_ext.fleet.planning.levels import levels_of, most_useful

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
    available = [(number, each) for number, each in enumerate(replicas) if each.available]
    if not available:
        return []
    # The mean time of a token and of a pair; launches are no work of rows.
    speeds = [state.speed for _, state in available]
    mean = Speed(0.0, fmean(each.token_s for each in speeds), fmean(each.pair_s for each in speeds))
    fleet = _fleet_of(costs, available, mean)
    whole = min(fleet, key=attrgetter("end_s"))
    owner = _division(costs, fleet, whole, mean, extra_work)
    if owner is None:
        return [Part(whole.number, np.arange(len(costs)))]
    return [
        Part(fleet[place].number, np.flatnonzero(owner == place))
        for place in np.unique(owner).tolist()
    ]


class _Place(NamedTuple):
    """A replica that may get rows of a request; seconds are its own.

    A unit of work is a second of a replica of mean speed. A replica has one rate for rows of all
    lengths. This is exact if speeds differ by a factor, and close if those of attention and of
    tokens differ by different factors.

    Attributes:
        number: its index among the replicas that the planner was given.
        start_s: until it computes a first row.
        rows_s: of all rows.
        rate: work a second.
        overhead: work of a launch, and of the prefix unless that is cached.
    """

    number: int
    start_s: float
    rows_s: float
    rate: float
    overhead: float

    @property
    def end_s(self) -> float:
        """Until it has computed the whole request."""
        return self.start_s + self.rows_s


def _fleet_of(
    costs: RowCosts, available: Sequence[tuple[int, ReplicaState]], mean: Speed
) -> list[_Place]:
    """Return the `MAX_PARTS` replicas that can begin soonest, in their order."""
    tokens, pairs = costs.num_tokens, costs.num_pairs
    work, fleet = mean.seconds(tokens, pairs), []
    for number, state in available:
        speed = state.speed
        missing = (0, 0) if state.has_prefix else (costs.prefix_tokens, costs.prefix_pairs)
        missing_tokens, missing_pairs = missing
        overhead_s = speed.launch_s + missing_tokens * speed.token_s + missing_pairs * speed.pair_s
        further = max(0.0, (missing_tokens + tokens) / speed.max_forward_tokens - 1)
        rows_s = tokens * speed.token_s + pairs * speed.pair_s + further * speed.launch_s
        rate = work / rows_s
        start_s = state.outstanding_s + overhead_s
        fleet.append(_Place(number, start_s, rows_s, rate, overhead_s * rate))
    return sorted(nsmallest(MAX_PARTS, fleet, key=attrgetter("start_s")))


def _division(
    costs: RowCosts, fleet: Sequence[_Place], whole: _Place, mean: Speed, extra_work: float
) -> Rows | None:
    """Return the index in the fleet of every row's replica; None if the request stays whole."""
    if extra_work < 0 or min(len(fleet), len(costs)) == 1:
        return None
    work = whole.rows_s * whole.rate
    useful = most_useful([each.start_s for each in fleet], [each.rate for each in fleet], work)
    own = [fleet[place] for place in useful[: len(costs)]]
    levels = levels_of([each.start_s for each in own], [each.rate for each in own], work)
    extra = [max(0.0, each - whole.overhead) for each in accumulate(each.overhead for each in own)]
    allowed = extra[: bisect_right(extra, extra_work * (work + whole.overhead))]
    least = min(map(_price, levels[1:], allowed[1:]), default=math.inf)
    if least >= whole.end_s:
        return None  # it would not pay even if rows could be cut
    places = _cheapest(costs.rows_s(mean), own, levels, allowed, whole.end_s)
    return None if places is None else np.array(useful)[places]


def _price(end_s: float, extra: float) -> float:
    """The end of a request, in seconds, and a charge for its extra work."""
    return end_s + WORTH * extra


def _cheapest(
    weights: Floats,
    own: Sequence[_Place],
    levels: Sequence[float],
    extra: Sequence[float],
    most: float,
) -> Rows | None:
    """Divide rows over the first replicas of `own`; return the index there of every row's replica.

    Args:
        weights: work of every row.
        levels, extra: of the first replica, of the first two, and so on; `extra` may be shorter.
        most: price of the request as a whole; None is returned if no division is cheaper.
    """
    starts = np.array([each.start_s for each in own])
    slowness = 1 / np.array([each.rate for each in own])
    longest_s = float((starts + weights.max() * slowness).min())
    prices = [_price(max(each, longest_s), more) for each, more in zip(levels, extra, strict=False)]
    owner, count = None, prices.index(min(prices)) + 1
    while count > 1 and prices[count - 1] < most:
        some = starts[:count], slowness[:count]
        places = assign(weights, *some)
        end_s = float(ends_of(places, weights, *some).max())
        price = _price(end_s, extra[count - 1])
        if price >= most:
            break
        most, owner = price, places
        # Rows cannot be cut, so parts end later than the level, and fewer of them may do as well.
        fewer = sum(each > end_s * (1 + 1e-9) for each in levels) + 1
        count = fewer if len(weights) < _FEW_ROWS * count and fewer < count else 0
    return owner
