"""Compare one engine alone with the same engine behind routers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.drawing import picture

ALONE = "one engine"


@dataclass(frozen=True, slots=True)
class LatencyResult:
    """One loop on one subject.

    Attributes:
        rate_per_s: offered requests per second of an open loop; 0 in a closed loop.
        clients: of the closed loop; 0 for an open one.
        p50_ms, p99_ms: latency; in an open loop from the scheduled arrival.
        router_cpu_ms: CPU time of the router processes per request; 0 without a router.
    """

    preset: str
    shape: str
    subject: str
    turn: int
    rate_per_s: float
    clients: int
    requests: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    router_cpu_ms: float


@dataclass(frozen=True, slots=True)
class Added:
    """One subject compared with the engine alone.

    Attributes:
        p50_ms, p99_ms: medians over the turns at part load.
        more_p50_ms, more_p99_ms: medians of the differences to the engine alone in the same turn.
        requests_per_s, router_cpu_ms: medians over the closed loops.
    """

    shape: str
    subject: str
    p50_ms: float
    p99_ms: float
    more_p50_ms: float
    more_p99_ms: float
    requests_per_s: float
    router_cpu_ms: float

    def __str__(self) -> str:
        return (
            f"{self.shape}, {self.subject}: P50 {self.p50_ms:.1f} ms ({self.more_p50_ms:+.1f}), "
            f"P99 {self.p99_ms:.1f} ms ({self.more_p99_ms:+.1f}), at most "
            f"{self.requests_per_s:.0f} requests/s, {self.router_cpu_ms:.2f} ms of a router each"
        )


def added(results: Sequence[LatencyResult]) -> list[Added]:
    """Pair every subject's turns with those of the engine alone."""
    alone = _at_part_load(results, ALONE)
    found = []
    for subject in dict.fromkeys(each.subject for each in results):
        own = _at_part_load(results, subject)
        most = [each for each in results if each.subject == subject and each.clients]
        pairs = list(zip(own, alone, strict=True))
        found.append(
            Added(
                shape=own[0].shape,
                subject=subject,
                p50_ms=median(each.p50_ms for each in own),
                p99_ms=median(each.p99_ms for each in own),
                more_p50_ms=median(each.p50_ms - other.p50_ms for each, other in pairs),
                more_p99_ms=median(each.p99_ms - other.p99_ms for each, other in pairs),
                requests_per_s=median(each.requests_per_s for each in most),
                router_cpu_ms=median(each.router_cpu_ms for each in most),
            )
        )
    return found


def _at_part_load(results: Iterable[LatencyResult], subject: str) -> list[LatencyResult]:
    own = [each for each in results if each.subject == subject and each.rate_per_s]
    return sorted(own, key=lambda each: each.turn)


def save_plot(path: Path, found: Sequence[Added], title: str) -> None:
    """Write a PNG, overwriting the file: latency at part load, and the highest requests/s."""
    with picture(path, 1, 2, title=title, figsize=(9, 3)) as (latency, rate):
        names = [each.subject for each in found]
        for quantile, values in (
            ("P99", [each.p99_ms for each in found]),
            ("P50", [each.p50_ms for each in found]),
        ):
            _bars(latency, names, values, quantile)
        latency.set_xlabel("latency at part load, ms")
        latency.legend(fontsize=8)
        _bars(rate, names, [each.requests_per_s for each in found], None)
        rate.set_xlabel("requests per second at most")
        for panel in (latency, rate):
            panel.invert_yaxis()
            panel.margins(x=0.15)


def _bars(panel: Any, names: Sequence[str], values: Sequence[float], label: str | None) -> None:
    bars = panel.barh(names, values, height=0.5, label=label)
    panel.bar_label(bars, fmt="%.1f", fontsize=7)
