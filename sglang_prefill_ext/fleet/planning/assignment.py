"""Gives rows to parts, so that the last part ends soon. Pure."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Places: TypeAlias = NDArray[np.int64]

_CLOSE = 0.01  # exchanges stop so close to the level: costs are not known more precisely
_MOST_EXCHANGES = 8
_GIVEN_SINGLY = 4  # rows per part that are given one by one, to even out the runs


def assign(weights: Floats, starts: Floats, slowness: Floats) -> Places:
    """Give every row, the longest first, to the part that ends soonest with it; then exchange.

    If there are many rows, only the shortest few per part are given one by one. All others are cut
    into runs, as long as each part can take.

    Bound: let ``level`` be the time at which all parts would end if rows could be cut anywhere,
    ``(sum(weights) + sum(starts / slowness)) / sum(1 / slowness)``, and let no part start after
    it. Then a part ends later than that by at most what the longest row takes on the slowest part.
    No assignment ends before the level. Proof: a run exceeds what its part can take until the level
    by at most half a row at either end, so a part with nothing but its run keeps the bound. For any
    other part, which ends at ``end``, let ``w`` be the weight of the last row that it was given
    singly. With that row, every part would have ended at ``end`` or later, so every part had at
    least ``(end - start) / slowness - w`` of work, and this part ``w`` more. The sum of that is at
    most ``sum(weights)``, so ``end`` is at most ``level + (parts - 1) * w / sum(1 / slowness)``.
    Exchanges only let the last part end earlier.

    Args:
        weights: work of every row, > 0; float64 ``[rows]``.
        starts: seconds until a part computes its first row; float64 ``[parts]``.
        slowness: seconds for one unit of work, > 0; float64 ``[parts]``.

    Returns:
        The part of every row; int64 ``[rows]``. If all rows are equal, those of a part are
        adjacent.
    """
    level = (weights.sum() + (starts / slowness).sum()) / (1 / slowness).sum()
    room = np.maximum(0, level - starts) / slowness
    places = _longest_first(weights, starts, slowness, room)
    if weights.min() == weights.max():
        return np.repeat(np.arange(len(starts)), np.bincount(places, minlength=len(starts)))
    for _ in range(_MOST_EXCHANGES):
        ends = ends_of(places, weights, starts, slowness)
        if ends.max() <= level * (1 + _CLOSE) or not _exchange(places, ends, weights, slowness):
            break
    return places


def ends_of(places: Places, weights: Floats, starts: Floats, slowness: Floats) -> Floats:
    """When every part ends; a part without rows ends at its start. float64 ``[parts]``."""
    return starts + slowness * np.bincount(places, weights, minlength=len(starts))


def _longest_first(weights: Floats, starts: Floats, slowness: Floats, room: Floats) -> Places:
    order = (-weights).argsort(kind="stable")
    count = max(0, len(weights) - _GIVEN_SINGLY * len(starts))
    runs = _runs(weights[order[:count]], room)
    ends, given = starts + slowness * np.bincount(runs, weights[order[:count]], len(starts)), []
    for weight in weights[order[count:]].tolist():
        with_it = ends + weight * slowness
        part = int(with_it.argmin())
        ends[part] = with_it[part]
        given.append(part)
    places = np.empty(len(weights), dtype=np.int64)
    places[order] = np.concatenate((runs, given))
    return places


def _runs(weights: Floats, room: Floats) -> Places:
    """Give each part adjacent rows, whose work is in proportion to its room."""
    until = weights.cumsum()
    bounds = room.cumsum() * (weights.sum() / room.sum())
    runs: Places = bounds[:-1].searchsorted(until - weights / 2, side="right")
    return runs


def _exchange(places: Places, ends: Floats, weights: Floats, slowness: Floats) -> bool:
    """Move a row from the part that ends last to another, or exchange it for a shorter one there.

    Of all these changes, the one is made after which the later of both parts ends soonest. Returns
    False, and changes nothing, if that is no sooner than before.
    """
    last = int(ends.argmax())
    own, others = np.flatnonzero(places == last), np.flatnonzero(places != last)
    if not len(own):
        return False  # it has no rows, but starts that late
    # A move is an exchange for a row without work: every part has one, after the real rows.
    parts = np.concatenate((places[others], np.arange(len(ends))))
    lighter = weights[own][:, None] - np.concatenate((weights[others], np.zeros(len(ends))))
    here = ends[last] - lighter * slowness[last]
    there = np.where(parts == last, np.inf, ends[parts] + lighter * slowness[parts])
    later = np.maximum(here, there)
    row, other = np.unravel_index(int(later.argmin()), later.shape)
    if later[row, other] >= ends[last] * (1 - 1e-9):
        return False
    if other < len(others):
        places[others[other]] = last
    places[own[row]] = parts[other]
    return True
