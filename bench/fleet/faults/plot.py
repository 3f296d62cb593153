"""A picture of the faults, and of how requests ended meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

from bench.drawing import picture
from bench.fleet.faults.session import FaultsResult

_LABEL_CHARS = 60
_ROW_INCHES = 0.3


def save_faults_plot(path: Path, result: FaultsResult) -> None:
    """Write a PNG, overwriting the file: faults by kind, beside requests by how they ended."""
    ends = {
        "right": result.right,
        **result.errors,
        "wrong": result.wrong,
        "lost": result.lost,
        "late": result.late,
    }
    rows = max(len(result.faults), len(ends))
    size = (11, 1.2 + _ROW_INCHES * rows)
    times = f"P50 {result.p50_ms:.0f} ms, P99 {result.p99_ms:.0f} ms"
    with picture(path, 1, 2, figsize=size) as (left, right):
        _bars(
            left, result.faults, f"{sum(result.faults.values())} faults in {result.seconds:.0f} s"
        )
        _bars(right, ends, f"{result.requests} requests, {times}", log=True)


def _bars(panel: Any, counts: Mapping[str, int], title: str, *, log: bool = False) -> None:
    names = [shorten(name, _LABEL_CHARS) for name in counts]
    bars = panel.barh(range(len(names)), list(counts.values()), color="#4878a8")
    panel.bar_label(bars, fontsize=7, padding=2)
    panel.set_yticks(range(len(names)), names, fontsize=7)
    panel.invert_yaxis()
    if log:
        panel.set_xscale("symlog")
    panel.margins(x=0.15)
    panel.set_title(title, fontsize=9)
