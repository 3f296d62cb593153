"""Measures how fast a replica has been recently. No clock."""

from __future__ import annotations

from sglang_prefill_ext.fleet.planning.cost import Computed, Speed

_MEMORY_S = 0.25
"""An answer counts half in the measured speed after this many busy seconds, ..."""

_MEMORY_PARTS = 4.0
"""...or after this many times the cost of the longest part, if that is more. Short parts may be
answered before a long one; the time that it was computed until then is counted as theirs."""

_REPORTS_MEMORY_S = 4.0
"""What a replica says that it has computed counts half after this many busy seconds. Tokens are
counted at a launch, their time at its end, which matters less the longer that is."""

_MOST_SURPRISE = 8.0
"""Most busy time that one answer counts for, in times of the longest part: a pause says nothing of
the speed."""


class RecentSpeed:
    """The speed of a replica, from its answers or from what it says of itself.

    Costs are in seconds at the first speed. While more work of others waits there than from here,
    it cannot be seen whether an answered part had to wait for that. Then `computed` tells more.

    Args:
        first: the speed that it was added with.

    Attributes:
        ratio: how many times slower it has been than at first: busy time divided by cost.
        now: the speed, so much slower.
    """

    def __init__(self, first: Speed) -> None:
        self.ratio = 1.0
        self.now = self._first = first
        self._busy_s = self._cost = _MEMORY_S / 4
        self._computed: Computed | None = None

    def answered(self, cost: float, busy_s: float, longest: float) -> None:
        """Learn from an answered part.

        Args:
            busy_s: time that was spent on parts from here since the last answer.
            longest: cost of the longest part that was there.
        """
        busy_s = min(busy_s, _MOST_SURPRISE * longest * self.ratio)
        self._learn(cost, busy_s, max(_MEMORY_S, _MEMORY_PARTS * longest))

    def computed(self, so_far: Computed, *, counts: bool) -> None:
        """Note what the replica has computed so far, for whomever; learn from it if it `counts`."""
        before, self._computed = self._computed or so_far, so_far
        busy_s = so_far.busy_s - before.busy_s
        cost = (so_far.tokens - before.tokens) * self._first.token_s
        if counts and busy_s > 0 and cost > 0:  # else it computed nothing, or has restarted
            self._learn(cost, busy_s, _REPORTS_MEMORY_S)

    def _learn(self, cost: float, busy_s: float, memory_s: float) -> None:
        """Count work that took `busy_s`; all before counts half after `memory_s`."""
        kept = 0.5 ** (busy_s / memory_s)
        self._busy_s = kept * self._busy_s + busy_s
        self._cost = kept * self._cost + cost
        self.ratio = self._busy_s / self._cost
        self.now = self._first.slowed(self.ratio)
