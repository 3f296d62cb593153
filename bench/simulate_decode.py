"""Compare a multi-level feedback queue with stock's order of generations, by simulation:
``python -m bench.simulate_decode``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from bench.command import Bench
from bench.drawing import new_table, picture
from bench.options import Name, Seed
from bench.simulation.decode_run import (
    REGIMES,
    STOCK,
    VARIANTS,
    DecodeOutcome,
    simulate_decode,
)
from bench.simulation.decode_traffic import DecodeCost, draw_decode_traffic

LOADS = [0.7, 0.95, 1.3]
_PANELS = {
    "normalised_ms": "normalised latency",
    "normalised_p99_ms": "P99 of it",
    "mean_slowdown": "mean slowdown",
    "first_token_ms": "time to first token",
    "gap_p99_ms": "P99 gap of tokens",
    "stall_p99_ms": "P99 longest gap",
}


def table_of(outcomes: Sequence[DecodeOutcome]) -> Table:
    """Return a table with one line per regime, load and variant; times in ms."""
    words, numbers = ("scarce", "variant"), ("load", "batch", "recomputed", *_PANELS.values())
    table = new_table("Generations", *words, *numbers, "tokens/s", left=words)
    for each in outcomes:
        table.add_row(
            each.regime,
            each.variant,
            f"{each.load:.2f}",
            f"{each.mean_batch:.1f}",
            f"{each.recomputed:.0%}",
            *(f"{getattr(each, name):,.1f}" for name in _PANELS),
            f"{each.tokens_per_s:,.0f}",
            end_section=each.variant == VARIANTS[-1].name,
        )
    return table


def save_plot(path: Path, outcomes: Sequence[DecodeOutcome]) -> None:
    """Write a PNG: every figure divided by stock's; below 1 is better."""
    stock = {(each.regime, each.load): each for each in outcomes if each.variant == STOCK.name}
    places = {key: number for number, key in enumerate(reversed(stock))}
    with picture(path, 2, len(_PANELS) // 2, figsize=(11, 7), sharey=True) as panels:
        for panel, (name, title) in zip(panels.flat, _PANELS.items(), strict=True):
            for variant, marker in zip(VARIANTS[1:], "os", strict=True):
                own = [each for each in outcomes if each.variant == variant.name]
                ratios = [
                    getattr(each, name) / getattr(stock[each.regime, each.load], name)
                    for each in own
                ]
                rows = [places[each.regime, each.load] for each in own]
                panel.plot(ratios, rows, marker, label=variant.name, alpha=0.8)
            panel.axvline(1.0, color="black", linewidth=0.8, linestyle="--")
            panel.set(xscale="log", xlabel=f"{title}, over stock's")
        labels = [f"{regime} scarce, load {load:g}" for regime, load in places]
        panels[0, 0].set_yticks(list(places.values()), labels)
        panels[0, 0].legend(fontsize=7)


def main(
    load: Annotated[
        list[float] | None,
        typer.Option(min=0.01, help="1 is what full batches can just serve; repeatable."),
    ] = None,
    requests: Annotated[int, typer.Option(min=100, help="Requests per load.")] = 4_000,
    seed: Seed = 0,
    name: Name = "decode_policies",
) -> None:
    """Compare orders of generations if slots or memory are scarce; a simulation, no server runs."""
    bench, cost = Bench("bench.simulate_decode", name, simulated=True), DecodeCost()
    settings = {"cost": asdict(cost), "requests": requests, "seed": seed}
    outcomes = []
    for regime in REGIMES:
        for each in load or LOADS:
            traffic = draw_decode_traffic(each, requests, regime.sized_for, cost, seed)
            outcomes += [simulate_decode(variant, regime, traffic, cost) for variant in VARIANTS]
    bench.console.print(table_of(outcomes))
    bench.record(outcomes, **settings)
    save_plot(bench.picture, outcomes)
    bench.say_written()


if __name__ == "__main__":
    typer.run(main)
