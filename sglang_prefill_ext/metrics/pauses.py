"""Measures how long garbage collections stop a process, for status page and Prometheus."""

from __future__ import annotations

import gc
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import msgspec

from sglang_prefill_ext.metrics import new_metric

BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Upper bounds of the histogram's buckets, in ms."""

_MOST_NEW = 4096
"""Most pauses that are kept until they are taken; beyond that the oldest are dropped."""


class Pauses(msgspec.Struct, frozen=True):
    """The pauses of one process since its start.

    Wall-clock time is what requests notice. It includes the time for which the operating system ran
    something else; CPU time does not.

    Attributes:
        count: number of pauses.
        total_ms, longest_ms: wall-clock time of all pauses, and of the longest.
        within_ms: by each bound of `BOUNDS_MS`, how many pauses took at most that long.
        cpu_longest_ms, cpu_within_ms: the same in CPU time.
    """

    count: int
    total_ms: float
    longest_ms: float
    within_ms: dict[str, int]
    cpu_longest_ms: float
    cpu_within_ms: dict[str, int]


class _Histogram:
    """Durations by the bounds of `BOUNDS_MS`."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_MS) + 1)
        self.total_s = 0.0
        self.longest_s = 0.0

    def add(self, duration_s: float) -> None:
        self._counts[bisect_left(BOUNDS_MS, duration_s * 1e3)] += 1
        self.total_s += duration_s
        self.longest_s = max(self.longest_s, duration_s)

    @property
    def count(self) -> int:
        return sum(self._counts)

    def within_ms(self) -> dict[str, int]:
        reached = accumulate(self._counts)
        return {str(bound): next(reached) for bound in BOUNDS_MS}


class PauseRecorder:
    """Times every collection of this process, automatic or not, while installed.

    A collection can begin at any allocation, even while a metrics library holds a lock. So the
    callback only adds numbers up; the metrics get them by `take`, at a safe time.

    Attributes:
        new: pauses that nobody has taken, in s, oldest first.
    """

    def __init__(self) -> None:
        self._wall, self._cpu = _Histogram(), _Histogram()
        self._begin_s: tuple[float, float] | None = None
        self.new: deque[float] = deque(maxlen=_MOST_NEW)

    def install(self) -> None:
        gc.callbacks.append(self._on_collection)

    def uninstall(self) -> None:
        gc.callbacks.remove(self._on_collection)

    def take(self) -> list[float]:
        """Return the pauses since the last call, in s, oldest first."""
        # One at a time: a collection may add to them meanwhile.
        return [self.new.popleft() for _ in range(len(self.new))]

    def summary(self) -> Pauses:
        wall, cpu = self._wall, self._cpu
        return Pauses(
            count=wall.count,
            total_ms=wall.total_s * 1e3,
            longest_ms=wall.longest_s * 1e3,
            within_ms=wall.within_ms(),
            cpu_longest_ms=cpu.longest_s * 1e3,
            cpu_within_ms=cpu.within_ms(),
        )

    def _on_collection(self, phase: str, _info: Mapping[str, Any]) -> None:
        now_s = (time.perf_counter(), time.thread_time())
        if phase == "start":
            self._begin_s = now_s
        elif self._begin_s is not None:  # else it began before this was installed
            self.add(now_s[0] - self._begin_s[0], now_s[1] - self._begin_s[1])

    def add(self, pause_s: float, cpu_s: float) -> None:
        """Record one pause: its wall-clock time and its CPU time."""
        self._wall.add(pause_s)
        self._cpu.add(cpu_s)
        self.new.append(pause_s)


def pause_histogram(labels: Mapping[str, str]) -> Any:
    """Make the histogram of a process's pauses in Prometheus; `labels` name its model and role."""
    buckets, text = [bound / 1e3 for bound in BOUNDS_MS], "Garbage collections, in seconds."
    made = new_metric("Histogram", "gc_pause_seconds", text, labels, buckets=buckets)
    return made.labels(**labels)
