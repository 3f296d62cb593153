"""The time that a call has."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Deadline:
    """When a call must have its answer.

    Args:
        timeout_s: seconds from now; None for no deadline.
        clock: seconds that never go back.
    """

    def __init__(
        self, timeout_s: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._at = math.inf if timeout_s is None else clock() + timeout_s

    def left_s(self) -> float:
        """Seconds left; infinite without a deadline, at most 0 once it has passed."""
        return self._at - self._clock()
