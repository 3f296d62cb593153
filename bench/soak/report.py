"""A table of the first and the last window of a long run."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from bench.drawing import new_table
from bench.soak.windows import LONG_PAUSE_MS, MOST_DRIFT, SoakWindow, Verdict


def soak_table(windows: Sequence[SoakWindow], verdict: Verdict) -> Table:
    """Return a table of the first and the last window, and the verdict; missed aims are red."""
    table = new_table("", "", "req/s", "P50, ms", "P99, ms", "memory, MiB", left=[""])
    for name, window in (("first", windows[0]), ("last", windows[-1])):
        memory = f"{sum(window.memory_mib.values()):,.0f}"
        rate = f"{window.requests_per_s:.1f}"
        table.add_row(name, rate, f"{window.p50_ms:.1f}", f"{window.p99_ms:.1f}", memory)
    drifts = _drift(verdict.throughput_drift), "", "", _drift(verdict.memory_drift)
    table.add_row("drift", *drifts)
    long = _judged(f"{verdict.long_pauses} over {LONG_PAUSE_MS} ms", not verdict.long_pauses)
    waits = f"{verdict.long_waits} by the wall clock"
    table.add_row(f"{verdict.pauses} pauses", long, waits, "", "")
    return table


def _drift(share: float) -> str:
    return _judged(f"{share:+.1%}", abs(share) <= MOST_DRIFT)


def _judged(text: str, good: bool) -> str:
    return f"[{'green' if good else 'red'}]{text}[/]"
