"""One picture per run: every ratio with its range, beside the ratio of counted operations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.drawing import picture
from bench.score.report import Comparison

_ROW_INCHES = 0.32
_PANELS = (
    (True, "items per second, extension over stock"),
    (False, "P50 latency, stock over extension"),
)


def save_plot(path: Path, comparisons: Sequence[Comparison], title: str) -> None:
    """Write a PNG, overwriting the file: closed loops above, open loops below."""
    loops = [each.stock.closed for each in comparisons]
    counts = [max(1, loops.count(closed)) for closed, _ in _PANELS]
    size = (9, 2 + _ROW_INCHES * sum(counts))
    with picture(path, len(_PANELS), title=title, figsize=size, height_ratios=counts) as panels:
        for panel, (closed, label) in zip(panels, _PANELS, strict=True):
            _ratios(panel, [each for each in comparisons if each.stock.closed == closed], label)


def _ratios(panel: Any, comparisons: Sequence[Comparison], label: str) -> None:
    """Draw one row per load. The axis is logarithmic, so 2× and ½× are equally far from 1."""
    panel.set_title(label, fontsize=9)
    panel.set_yticks(range(len(comparisons)), [_name(each) for each in comparisons], fontsize=8)
    if not comparisons:
        panel.text(0.5, 0.5, "not measured", ha="center", transform=panel.transAxes)
        return
    rows = range(len(comparisons))
    panel.hlines(
        rows,
        [each.lowest_ratio for each in comparisons],
        [each.highest_ratio for each in comparisons],
        color="#1f6feb",
    )
    panel.plot([each.ratio for each in comparisons], rows, "o", color="#1f6feb", label="measured")
    allowed = [each.stock.operation_ratio for each in comparisons]
    panel.plot(allowed, rows, "D", mfc="none", mec="#9aa5b1", label="operation count")
    for row, each in zip(rows, comparisons, strict=True):
        panel.annotate(
            f"{each.ratio:.2f}×", (each.ratio, row), (0, 5), textcoords="offset points", fontsize=7
        )
    panel.axvline(1.0, color="black", linewidth=0.8, linestyle="--")
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter(lambda ratio, _: f"{ratio:g}×")
    panel.invert_yaxis()
    panel.margins(y=0.15)
    panel.legend(fontsize=7)


def _name(each: Comparison) -> str:
    return f"{each.stock.preset}  {each.stock.shape}  {each.stock.load}"
