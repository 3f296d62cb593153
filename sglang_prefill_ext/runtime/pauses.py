"""How long garbage collections hold a process up."""

from __future__ import annotations

import gc
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import msgspec

BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Upper bounds of the histogram's buckets, in ms."""

_MOST_NEW = 4096
"""Pauses that are kept for whoever takes them; beyond, the oldest are left out."""


class Pauses(msgspec.Struct, frozen=True):
    """The pauses of one process since its start.

    Attributes:
        count: how many.
        total_ms, longest_ms: in all, and the longest one.
        within_ms: how many took at most so many ms, by the bounds of `BOUNDS_MS`.
    """

    count: int
    total_ms: float
    longest_ms: float
    within_ms: dict[str, int]


class PauseRecorder:
    """Times every collection of this process, automatic or not, while installed.

    A collection can begin at any allocation, also inside a lock of a metrics library. So the
    callback only adds numbers up; `take` hands them on when that is safe.
    """

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_MS) + 1)
        self._total_s = 0.0
        self._longest_s = 0.0
        self._begin_s: float | None = None
        self._new: deque[float] = deque(maxlen=_MOST_NEW)

    def install(self) -> None:
        gc.callbacks.append(self._on_collection)

    def uninstall(self) -> None:
        gc.callbacks.remove(self._on_collection)

    def take(self) -> list[float]:
        """Return the pauses since the last call, in s, oldest first."""
        # One at a time: a collection may add to them meanwhile.
        return [self._new.popleft() for _ in range(len(self._new))]

    def summary(self) -> Pauses:
        reached = accumulate(self._counts)
        return Pauses(
            count=sum(self._counts),
            total_ms=self._total_s * 1e3,
            longest_ms=self._longest_s * 1e3,
            within_ms={str(bound): next(reached) for bound in BOUNDS_MS},
        )

    def _on_collection(self, phase: str, _info: Mapping[str, Any]) -> None:
        if phase == "start":
            self._begin_s = time.perf_counter()
        elif self._begin_s is not None:  # else it began before this was installed
            self.add(time.perf_counter() - self._begin_s)
            self._begin_s = None

    def add(self, pause_s: float) -> None:
        """Record one pause."""
        self._counts[bisect_left(BOUNDS_MS, pause_s * 1e3)] += 1
        self._total_s += pause_s
        self._longest_s = max(self._longest_s, pause_s)
        self._new.append(pause_s)
