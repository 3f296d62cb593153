"""Predicts when replicas would have done all work, if rows could be cut anywhere. Pure.

A replica that begins at ``start`` and computes ``rate`` of the rows' work a second has computed
``rate * (t - start)`` of it at time ``t``. So replicas ``1..k`` all end at the *level*::

    level = (work + sum(rate * start)) / sum(rate)

No division over these replicas ends sooner, as all of them compute without a pause until then.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.fleet.planning.assignment import Floats


def levels_of(starts: Floats, rates: Floats, work: float) -> Floats:
    """Return the level of the first replica, of the first two, and so on; float64 ``[replicas]``.

    Args:
        starts: seconds until each begins; float64 ``[replicas]``.
        rates: work a second, > 0; float64 ``[replicas]``.
    """
    levels: Floats = (work + (rates * starts).cumsum()) / rates.cumsum()
    return levels


def most_useful(starts: Floats, rates: Floats, work: float) -> NDArray[np.int64]:
    """Return the indices of the replicas that are of use: each begins before their common level.

    They are in the order of the work that they would have done by then, the most first. Of equally
    fast replicas, the first ``k`` have the lowest level of any ``k``.
    """
    order = starts.argsort(kind="stable")
    levels = levels_of(starts[order], rates[order], work)
    reached = starts[order] < levels
    count = len(order) if reached.all() else int(reached.argmin())
    used: NDArray[np.int64] = order[:count]
    done = (levels[count - 1] - starts[used]) * rates[used]
    useful: NDArray[np.int64] = used[(-done).argsort(kind="stable")]
    return useful
