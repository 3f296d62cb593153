"""Decides when an idle process settles its garbage collection (`collector.GcAction`). No clock."""

from __future__ import annotations


class IdleWatch:
    """Decides when to settle: once after every period of work, when that is over for a while.

    Work shows in requests under way, and in garbage collections. Collections follow allocations, so
    a process that has had none since it last settled has hardly grown.

    Args:
        idle_s: for how long nothing must have happened; 0 never settles.
        collections: number of collections that the process has had so far.
    """

    def __init__(self, idle_s: float, collections: int = 0) -> None:
        self._idle_s = idle_s
        self._seen = self._settled = collections
        self._quiet_since_s: float | None = None

    def is_due(self, now_s: float, collections: int, *, busy: bool) -> bool:
        """Whether to settle now; call it from time to time.

        Args:
            now_s: a clock that never goes back.
            collections: number of collections that the process has had so far.
            busy: whether requests are under way.
        """
        if busy or collections != self._seen or self._quiet_since_s is None:
            self._seen, self._quiet_since_s = collections, now_s
        quiet_s = now_s - self._quiet_since_s
        return 0 < self._idle_s <= quiet_s and collections != self._settled

    def note_settled(self, collections: int) -> None:
        """Wait for new work. The collections of settling itself do not count as work."""
        self._seen = self._settled = collections
