"""Orders of service compared by simulation: ``python -m bench.simulate``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import matplotlib as mpl
import typer
from matplotlib import pyplot as plt
from rich import box
from rich.console import Console
from rich.table import Table

from bench.record import run_context
from bench.simulation import LENGTHS, SHARED, VARIANTS, CostModel, Outcome, draw_traffic, simulate

mpl.use("Agg")

RESULTS = Path(__file__).parent / "results"
LOADS = [0.7, 0.95, 1.3]
COST = CostModel()
TABLE_WIDTH = 150  # columns


def table_of(outcomes: Sequence[Outcome]) -> Table:
    """One line per variant; the last column compares with fcfs under the same load."""
    table = Table(title="Mean slowdown", title_justify="left", box=box.SIMPLE_HEAD)
    lengths = [f"{length} tokens" for length in LENGTHS]
    for name in ("load", "variant", "all", *lengths, "per forward"):
        table.add_column(name, justify="left" if name == "variant" else "right", no_wrap=True)
    table.add_column("bound violated", justify="right")
    table.add_column("P99 of the longest, ms (of fcfs)", justify="right")
    fcfs = {each.load: each.longest_p99_ms for each in outcomes if each.variant == SHARED.name}
    for each in outcomes:
        table.add_row(
            f"{each.load:.2f}",
            each.variant,
            f"{each.mean_slowdown:.1f}",
            *(f"{slowdown:.1f}" for slowdown in each.class_slowdown.values()),
            f"{each.requests_per_forward:.1f}",
            "-" if each.bound_violations is None else str(each.bound_violations),
            f"{each.longest_p99_ms:,.0f} ({each.longest_p99_ms / fcfs[each.load]:.2f}x)",
        )
    return table


def save_plot(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write a PNG: for every load the mean slowdown, and the P99 of the longest class."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    for name in dict.fromkeys(each.variant for each in outcomes):
        own = [each for each in outcomes if each.variant == name]
        loads = [each.load for each in own]
        left.plot(loads, [each.mean_slowdown for each in own], marker="o", label=name)
        right.plot(loads, [each.longest_p99_ms for each in own], marker="o", label=name)
    left.set(xlabel="load", ylabel="mean slowdown", yscale="log")
    right.set(xlabel="load", ylabel=f"P99 of {LENGTHS[-1]} tokens, ms", yscale="log")
    left.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(
    load: Annotated[
        list[float] | None, typer.Option(min=0.01, help="1 is all that single requests allow.")
    ] = None,
    requests: Annotated[int, typer.Option(min=100, help="Per load.")] = 20_000,
    launch_ms: Annotated[float, typer.Option(help="Of any forward.")] = COST.launch_ms,
    ms_per_token: Annotated[float, typer.Option()] = COST.ms_per_token,
    ms_per_row: Annotated[float, typer.Option()] = COST.ms_per_row,
    seed: Annotated[int, typer.Option()] = 0,
    name: Annotated[str, typer.Option(help="File name in bench/results.")] = "scheduling",
) -> None:
    """Compare orders of service on prompts of mixed lengths; nothing but arithmetic runs."""
    cost = CostModel(launch_ms, ms_per_token, ms_per_row)
    console = Console(width=TABLE_WIDTH)
    outcomes = []
    for each in load or LOADS:
        traffic = draw_traffic(each, requests, cost, seed)
        outcomes += [simulate(variant, traffic, cost) for variant in VARIANTS]
    console.print(table_of(outcomes))
    save(outcomes, {"cost": asdict(cost), "requests": requests, "seed": seed}, name, console)


def save(
    outcomes: Sequence[Outcome], settings: dict[str, Any], name: str, console: Console
) -> None:
    """Append the records and draw the plot."""
    command = ["python", "-m", "bench.simulate", *sys.argv[1:]]
    context = run_context() | {"command": command} | settings
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (RESULTS / f"{name}.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps({**asdict(each), **context}) + "\n" for each in outcomes)
    save_plot(RESULTS / f"{name}.png", outcomes)
    console.print(f"written: {RESULTS / name}.jsonl, .png")


if __name__ == "__main__":
    typer.run(main)
