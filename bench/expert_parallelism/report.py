"""Tables and plots of the predictions; ratios first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.drawing import new_table, picture
from bench.expert_parallelism.compare import LOAD, LONE_ITEMS, Compared
from bench.expert_parallelism.cost import Sends

PLACEMENTS = ("in order", "rebalanced")
_STYLES = dict(zip(PLACEMENTS, ("o-", "o--"), strict=True))
_FIGURES = ("requests/s", "P50", "P99", *(f"lone, {items}" for items in LONE_ITEMS))
_DRAWN = ("requests/s", "P99")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One comparison with its parameters."""

    model: str
    device: str
    gpus: int
    routing: str
    sends: str
    placement: str
    compared: Compared


def table_of(outcomes: Sequence[Outcome]) -> Table:
    """Return a table for one model and number of devices: one line per routing, way to send and
    placement. Comparisons in which neither side can serve the model have no line."""
    first = outcomes[0]
    sides = {"fleet": first.compared.fleet, "experts divided": first.compared.experts}
    refused = "".join(f"\n{name}: {each.why_not}" for name, each in sides.items() if each.why_not)
    title = f"{first.model}, {first.gpus} x {first.device}: fleet over experts divided{refused}"
    words = ("routing", "tokens travel", "experts")
    rates = ("fleet, requests/s", "divided", f"{LOAD:.0%} of the slower")
    table = new_table(title, *words, *_FIGURES, "busiest GPU", *rates, left=words)
    for each in outcomes:
        found = each.compared
        if not found.rate:
            continue
        most = (side.figures.get("requests/s") for side in (found.fleet, found.experts))
        table.add_row(
            *(each.routing, each.sends, each.placement),
            *(f"{found.ratios[name]:.2f}x" if found.ratios else "-" for name in _FIGURES),
            f"{found.busiest:.2f}",
            *(f"{rate:.2f}" if rate else "-" for rate in (*most, found.rate)),
        )
    return table


def save_plot(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write a PNG: a row per model, device and figure, a column per number of GPUs. Comparisons in
    which a side cannot serve the model are left out."""
    own = [each for each in outcomes if each.compared.ratios]
    pairs = dict.fromkeys((each.model, each.device) for each in own)
    rows, counts = [*product(pairs, _DRAWN)], [*dict.fromkeys(each.gpus for each in own)]
    layout = (max(1, len(rows)), max(1, len(counts)))
    size = (4.2 * layout[1], 3 * layout[0])
    title = "Predicted: by how much a fleet is better than divided experts"
    with picture(path, *layout, title=title, figsize=size, squeeze=False) as panels:
        for line, ((model, device), figure) in zip(panels, rows, strict=False):
            for panel, gpus in zip(line, counts, strict=True):
                case = (model, device, gpus)
                _lines(panel, [e for e in own if (e.model, e.device, e.gpus) == case], figure)
                panel.set_title(f"{model}, {gpus} x {device}: {figure}", fontsize=9)
        panels[0, 0].legend(fontsize=7)


def _lines(panel: Any, outcomes: Sequence[Outcome], figure: str) -> None:
    for (number, sends), placement in product(enumerate(Sends), PLACEMENTS):
        own = [e for e in outcomes if (e.sends, e.placement) == (sends, placement)]
        ratios = [each.compared.ratios[figure] for each in own]
        named = {"color": f"C{number}", "label": f"{sends}, {placement}", "ms": 3}
        panel.plot([each.routing for each in own], ratios, _STYLES[placement], **named)
    panel.axhline(1.0, color="black", linewidth=0.8)
    panel.set_yscale("log", base=2)
    panel.yaxis.set_major_formatter(lambda ratio, _: f"{ratio:.2g}x")
    panel.tick_params(labelsize=7)
