"""Where a prefix is cached, and when a request returns to it. One rule for all who balance."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

MAX_HOMES = 4096
"""Prefixes whose home is remembered; the longest unused is forgotten."""

Number = TypeVar("Number", np.int64, np.float64)
Home = TypeVar("Home")


def soonest(waiting: NDArray[Number], saved: NDArray[Number]) -> int:
    """Return where a request is done first; of equals the first.

    Who has its prefix takes it, unless what waits there beyond the least costs more than the
    prefix saves.

    Args:
        waiting: what has to be computed before it, in any unit of cost; ``[places]``.
        saved: what each place need not compute as it has the prefix; ``[places]``.
    """
    return int((waiting - saved).argmin())


class Homes(Generic[Home]):
    """Remembers by a key of the prefix where it was computed last."""

    def __init__(self) -> None:
        self._homes: OrderedDict[Hashable, Home] = OrderedDict()

    def get(self, key: Hashable) -> Home | None:
        return self._homes.get(key)

    def remember(self, key: Hashable, home: Home) -> None:
        self._homes[key] = home
        self._homes.move_to_end(key)
        if len(self._homes) > MAX_HOMES:
            self._homes.popitem(last=False)
