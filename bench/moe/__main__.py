"""Blocks of experts by policy, predicted over synthetic and recorded routing:
``python -m bench.moe``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import matplotlib as mpl
import typer
from matplotlib import pyplot as plt
from rich import box
from rich.console import Console
from rich.table import Table

from bench.moe.replay import WAYS, Outcome, decision_us, replay
from bench.moe.routing import drawn, recorded
from bench.moe.shapes import ROW_TIMES, SHAPES
from bench.record import append, run_context

mpl.use("Agg")

RESULTS = Path(__file__).parents[1] / "results"
TOKENS = [64, 128, 256, 512, 1024, 2304, 4096, 8192, 16384]
TABLE_WIDTH = 190  # columns
STYLES = dict(zip(WAYS, ("#9aa5b1", "#d29922", "#1f6feb", "#2da44e"), strict=True))


@dataclass(frozen=True, slots=True)
class Cost:
    """What choosing takes the host, in microseconds a layer of 128 experts."""

    decision_us: float


def main(
    tokens: Annotated[list[int] | None, typer.Option(min=64, help="Repeatable.")] = None,
    forwards: Annotated[int, typer.Option(min=2, help="Of each length.")] = 12,
    seed: Annotated[int, typer.Option()] = 0,
    name: Annotated[str, typer.Option(help="File name in bench/results.")] = "moe",
) -> None:
    """Compare policies by padded rows and predicted time; nothing but arithmetic runs."""
    console = Console(width=TABLE_WIDTH)
    context = run_context("bench.moe") | {"row_times": ROW_TIMES, "forwards": forwards}
    outcomes: list[Outcome] = []
    for shape in SHAPES:
        for kind in ("uniform", "zipf"):
            for length in tokens or TOKENS:
                given = drawn(kind, shape.experts, shape.top_k, length, forwards, seed)
                outcomes += replay(shape, kind, [*given])
        if kept := recorded(shape.experts, shape.top_k):
            outcomes += replay(shape, "recorded", kept)
    cost = Cost(round(decision_us(), 2))
    for shape in SHAPES:
        console.print(table_of([each for each in outcomes if each.shape == shape.name]))
    for policy in STYLES:
        regrets = [each.regret for each in outcomes if each.policy == policy]
        console.print(
            f"{policy}: {sum(regrets) / len(regrets):.2%} above the best block on average, "
            f"{max(regrets):.1%} at most"
        )
    console.print(f"choosing takes the host {cost.decision_us} us a layer (128 experts, 48 layers)")
    append(RESULTS / f"{name}.jsonl", [*outcomes, cost], context)
    save_plot(RESULTS / f"{name}.png", outcomes)
    console.print(f"written: {RESULTS / name}.jsonl, .png")


def table_of(outcomes: Sequence[Outcome]) -> Table:
    """One line for each routing and length of one model."""
    table = Table(title=outcomes[0].shape, title_justify="left", box=box.SIMPLE_HEAD)
    policies = list(STYLES)
    for column in ("routing", "tokens"):
        table.add_column(column, justify="right")
    for what in ("padded/real", "regret"):
        for policy in policies:
            table.add_column(f"{what}, {policy}", justify="right")
    table.add_column("Tflop, auto (stock)", justify="right")
    found = {(each.routing, each.tokens, each.policy): each for each in outcomes}
    for routing, tokens in dict.fromkeys((each.routing, each.tokens) for each in outcomes):
        own = [found[routing, tokens, policy] for policy in policies]
        stock, *_, auto, _ = own
        table.add_row(
            routing,
            f"{tokens:,}",
            *(f"{each.padded:.2f}" for each in own),
            *(f"{each.regret:.1%}" for each in own),
            f"{auto.operations / 1e12:.2f} ({stock.operations / 1e12:.2f})",
        )
    return table


def save_plot(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write a PNG: a panel for each model and routing, regret over tokens; lower is better."""
    shapes = list(dict.fromkeys(each.shape for each in outcomes))
    routings = list(dict.fromkeys(each.routing for each in outcomes))
    figure, rows = plt.subplots(
        len(routings),
        len(shapes),
        figsize=(4 * len(shapes), 3 * len(routings)),
        layout="constrained",
        squeeze=False,
    )
    for panels, routing in zip(rows, routings, strict=True):
        for panel, shape in zip(panels, shapes, strict=True):
            for policy, colour in STYLES.items():
                drawn_here = (shape, routing, policy)
                own = [e for e in outcomes if (e.shape, e.routing, e.policy) == drawn_here]
                own.sort(key=lambda each: each.tokens)
                regret = [100 * each.regret for each in own]
                panel.plot([e.tokens for e in own], regret, "o-", color=colour, label=policy, ms=3)
            panel.set_xscale("log", base=2)
            panel.set_title(f"{shape}, {routing}", fontsize=9)
            panel.set_ylabel("% above the best block", fontsize=8)
    rows[0][0].legend(fontsize=8)
    figure.suptitle("Predicted time of experts, with assumed times of a row", fontsize=9)
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    typer.run(main)
