"""A table and a plot of predicted and measured latency."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from bench.drawing import new_table, picture
from bench.parallelism.prediction import Predicted


def table_of(found: Sequence[Predicted]) -> Table:
    """Return a table with one line per subject and load."""
    numbers = ("predicted ms", "P50 ms", "least ms", "predicted", "measured")
    table = new_table("", "shape", "clients", "", *numbers, left=["shape"])
    for each in found:
        table.add_row(
            each.shape,
            str(each.clients),
            each.subject,
            f"{each.predicted_ms:.1f}",
            f"{each.measured_ms:.1f}",
            f"{each.least_ms:.1f}",
            f"{each.faster:.2f}x",
            f"{each.measured_faster:.2f}x",
        )
    return table


def save_plot(path: Path, found: Sequence[Predicted], title: str) -> None:
    """Write a PNG: measured against predicted latency, one color per subject."""
    with picture(path, title=title, figsize=(6, 5)) as panel:
        for subject in dict.fromkeys(each.subject for each in found):
            own = [each for each in found if each.subject == subject]
            panel.plot(
                [each.predicted_ms for each in own],
                [each.measured_ms for each in own],
                "o",
                label=subject,
            )
        latencies = [ms for each in found for ms in (each.predicted_ms, each.measured_ms)]
        ends = [min(latencies), max(latencies)]
        panel.plot(ends, ends, "--", color="black", linewidth=0.8)
        panel.set(xscale="log", yscale="log", xlabel="predicted ms", ylabel="measured P50, ms")
        panel.legend(fontsize=8)
