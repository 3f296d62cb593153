"""One picture per run: throughput above, latency below, a column for each model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

from bench.report import Comparison, Side

mpl.use("Agg")

_COLOURS = {"stock": "#9aa5b1", "extension": "#1f6feb"}
_BAR_WIDTH = 0.4
_PANELS = (("items/s, closed loop", "items_per_s", True), ("P50 in ms, open loop", "p50_ms", False))


def save_plot(path: Path, comparisons: Sequence[Comparison], title: str) -> None:
    """Write a PNG of all comparisons, overwriting the file."""
    presets = list(dict.fromkeys(each.preset for each in comparisons))
    figure, axes = plt.subplots(
        len(_PANELS),
        len(presets),
        figsize=(7 * len(presets), 8),
        squeeze=False,
        layout="constrained",
    )
    for row, (label, field, closed) in zip(axes, _PANELS, strict=True):
        for panel, preset in zip(row, presets, strict=True):
            shown = [each for each in comparisons if each.preset == preset]
            _bars(panel, [each for each in shown if each.closed == closed], field)
            panel.set(title=preset, ylabel=label)
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _bars(panel: Any, comparisons: Sequence[Comparison], field: str) -> None:
    """Two bars per load, with the ratio above them; logarithmic, as the loads differ widely."""
    if not comparisons:
        panel.text(0.5, 0.5, "not measured", ha="center", transform=panel.transAxes)
        return
    for offset, side in ((-_BAR_WIDTH / 2, "stock"), (_BAR_WIDTH / 2, "extension")):
        heights = [_value(getattr(each, side), field) for each in comparisons]
        places = [index + offset for index in range(len(heights))]
        panel.bar(places, heights, _BAR_WIDTH, label=side, color=_COLOURS[side])
    for index, each in enumerate(comparisons):
        top = max(_value(each.stock, field), _value(each.extension, field))
        panel.annotate(f"{each.ratio:.1f}×", (index, top), ha="center", va="bottom")
    panel.set_yscale("log")
    panel.margins(y=0.15)
    labels = [f"{each.shape}\n{each.load}" for each in comparisons]
    panel.set_xticks(range(len(labels)), labels, rotation=90, fontsize=8)
    panel.legend()


def _value(side: Side, field: str) -> float:
    value: float = getattr(side, field)
    return value
