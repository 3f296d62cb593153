"""A table of the first and the last window of a long run, and a picture of all windows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from bench.drawing import new_table, picture
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


def save_soak_plot(path: Path, windows: Sequence[SoakWindow], title: str) -> None:
    """Write a PNG, overwriting the file: throughput, latency and memory over time."""
    with picture(path, 3, title=title, figsize=(9, 8), sharex=True) as panels:
        minutes = [window.end_s / 60 for window in windows]
        panels[0].plot(minutes, [window.requests_per_s for window in windows])
        panels[0].set_ylabel("requests per second")
        panels[1].plot(minutes, [window.p50_ms for window in windows], label="P50")
        panels[1].plot(minutes, [window.p99_ms for window in windows], label="P99")
        panels[1].set_ylabel("latency, ms")
        for process in windows[0].memory_mib:
            panels[2].plot(
                minutes, [window.memory_mib[process] for window in windows], label=process
            )
        panels[2].set_ylabel("resident memory, MiB")
        panels[2].set_xlabel("minutes")
        for panel in panels:
            panel.set_ylim(bottom=0)
        for panel in panels[1:]:
            panel.legend(fontsize=7)
