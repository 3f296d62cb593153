"""Divide a long run into windows of time, and compare its end with its start (pure)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

LONG_PAUSE_MS = 20
"""Pauses above this are long; it must be a bucket limit of the server's histogram."""
MOST_DRIFT = 0.02
"""Aim: throughput and memory at the end differ from those at the start by at most this share."""
MOST_SLOWING = 0.5
"""Aim: P50 at the end exceeds that at the start by at most this share. On two cores that other
programs share, it rose by up to a quarter without a cause in the server."""

_ENDS = 5  # the first and the last fifth of the windows are compared


@dataclass(frozen=True, slots=True)
class SoakWindow:
    """A part of the run.

    Attributes:
        end_s: end of the window, in seconds after the start of the load.
        requests_per_s: answers per second in the window.
        p50_ms, p99_ms: latency from the scheduled arrival, of requests answered in the window.
        memory_mib: process -> resident memory at the end of the window.
    """

    end_s: float
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    memory_mib: dict[str, float]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the end of a run differs from its start.

    Attributes:
        throughput_drift: change from the first fifth to the last, as a share; negative is slower.
            At a steady rate of arrivals it shows only whether all of them were answered.
        memory_drift: the same of the process whose memory has changed most.
        pauses: number of pauses for garbage collection, in all processes.
        long_pauses: number of these that took more than `LONG_PAUSE_MS` of CPU time.
        long_waits: number that took more than that by the wall clock only, because other processes
            ran meanwhile.
        latency_drift: change of P50 from the first fifth to the last, as a share; positive is
            slower, NaN if nothing was answered in one of them.
    """

    throughput_drift: float
    memory_drift: float
    pauses: int
    long_pauses: int
    long_waits: int = 0
    latency_drift: float = 0.0

    @property
    def passed(self) -> bool:
        drifts = (self.throughput_drift, self.memory_drift)
        steady = all(abs(each) <= MOST_DRIFT for each in drifts)
        return not self.long_pauses and steady and self.latency_drift <= MOST_SLOWING


def windows_of(
    ended_s: Sequence[float],
    latencies_s: Sequence[float],
    samples: Sequence[tuple[float, dict[str, float]]],
) -> list[SoakWindow]:
    """Divide a run into windows at the times at which memory was sampled.

    Args:
        ended_s: when each answer was complete, in seconds after the start of the load.
        latencies_s: latencies of the same answers.
        samples: times in seconds after the start, ascending, and memory in MiB by process.

    Returns:
        A window for each sample; latencies are NaN if nothing was answered in it.
    """
    ends, latencies = np.array(ended_s), np.array(latencies_s)
    windows, begin_s = [], 0.0
    for end_s, memory_mib in samples:
        inside = latencies[(ends > begin_s) & (ends <= end_s)] * 1e3
        p50, p99 = np.percentile(inside, [50, 99]) if len(inside) else (np.nan, np.nan)
        rate = len(inside) / (end_s - begin_s)
        windows.append(SoakWindow(end_s, rate, float(p50), float(p99), memory_mib))
        begin_s = end_s
    return windows


def verdict_of(
    windows: Sequence[SoakWindow],
    before: Sequence[Mapping[str, Any]],
    after: Sequence[Mapping[str, Any]],
) -> Verdict:
    """Compare the end of a run with its start.

    Args:
        windows: in order; at least one.
        before, after: reports of the processes on their garbage collection, around the run.
    """
    part = max(1, len(windows) // _ENDS)
    first, last = windows[:part], windows[-part:]
    memory_drifts = (
        _drift(first, last, partial(_memory_mib, process)) for process in first[0].memory_mib
    )
    (pauses, long_wall, long_cpu) = (
        now - then for now, then in zip(_pauses(after), _pauses(before), strict=True)
    )
    return Verdict(
        throughput_drift=_drift(first, last, lambda window: window.requests_per_s),
        memory_drift=max(memory_drifts, key=abs, default=0.0),
        pauses=pauses,
        long_pauses=long_cpu,
        long_waits=long_wall - long_cpu,
        latency_drift=_usual_p50_ms(last) / _usual_p50_ms(first) - 1.0,
    )


def _usual_p50_ms(windows: Sequence[SoakWindow]) -> float:
    """Lower quartile of P50: other programs slow some windows down, a slower server all of them."""
    answered = [each.p50_ms for each in windows if not math.isnan(each.p50_ms)]
    return float(np.quantile(answered, 0.25)) if answered else math.nan


def _memory_mib(process: str, window: SoakWindow) -> float:
    return window.memory_mib[process]


def _drift(
    first: Sequence[SoakWindow], last: Sequence[SoakWindow], value: Callable[[SoakWindow], float]
) -> float:
    start = statistics.mean(map(value, first))  # may be 0 in a short run on a busy machine
    return statistics.mean(map(value, last)) / start - 1.0 if start else math.inf


def _pauses(reports: Sequence[Mapping[str, Any]]) -> tuple[int, int, int]:
    """Count pauses of all processes: all, those long by wall clock, and those long by CPU time."""
    pauses = [report["pauses"] for report in reports]
    count = sum(each["count"] for each in pauses)
    wall, cpu = (
        count - sum(each[kind][str(LONG_PAUSE_MS)] for each in pauses)
        for kind in ("within_ms", "cpu_within_ms")
    )
    return count, wall, cpu
