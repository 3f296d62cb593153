"""Predicts when replicas would have done all work, if rows could be cut anywhere. Pure.

A replica that begins at ``start`` and computes ``rate`` of the rows' work a second has computed
``rate * (t - start)`` of it at time ``t``. So replicas ``1..k`` all end at the *level*::

    level = (work + sum(rate * start)) / sum(rate)

No division over these replicas ends sooner, as all of them compute without a pause until then.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul, truediv


def levels_of(starts: Sequence[float], rates: Sequence[float], work: float) -> list[float]:
    """Return the level of the first replica, of the first two, and so on.

    Args:
        starts: seconds until each begins.
        rates: work a second of each, > 0.
    """
    ahead = accumulate(map(mul, rates, starts), initial=work)
    next(ahead)
    return list(map(truediv, ahead, accumulate(rates)))


def most_useful(starts: Sequence[float], rates: Sequence[float], work: float) -> list[int]:
    """Return the indices of the replicas that are of use: each begins before their common level.

    They are in the order of the work that they would have done by then, the most first. Of equally
    fast replicas, the first ``k`` have the lowest level of any ``k``.
    """
    order = sorted(range(len(starts)), key=starts.__getitem__)
    levels = levels_of([starts[at] for at in order], [rates[at] for at in order], work)
    used = [at for at, level in zip(order, levels, strict=True) if starts[at] < level]
    level = levels[len(used) - 1]
    return sorted(used, key=lambda at: (starts[at] - level) * rates[at])
