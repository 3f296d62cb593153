"""Compare a multi-level feedback queue with stock's order of generations, by simulation:
``python -m bench.simulate_decode``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from bench.command import Bench
from bench.drawing import new_table
from bench.options import Name, Seed
from bench.simulation.decode_run import REGIMES, VARIANTS, DecodeOutcome, simulate_decode
from bench.simulation.decode_traffic import DecodeCost, draw_decode_traffic

LOADS = [0.7, 0.95, 1.3]
_FIGURES = {
    "normalised_ms": "normalised latency",
    "normalised_p99_ms": "P99 of it",
    "mean_slowdown": "mean slowdown",
    "first_token_ms": "time to first token",
    "gap_p99_ms": "P99 gap of tokens",
    "stall_p99_ms": "P99 longest gap",
}


def table_of(outcomes: Sequence[DecodeOutcome]) -> Table:
    """Return a table with one line per regime, load and variant; times in ms."""
    words, numbers = ("scarce", "variant"), ("load", "batch", "recomputed", *_FIGURES.values())
    table = new_table("Generations", *words, *numbers, "tokens/s", left=words)
    for each in outcomes:
        table.add_row(
            each.regime,
            each.variant,
            f"{each.load:.2f}",
            f"{each.mean_batch:.1f}",
            f"{each.recomputed:.0%}",
            *(f"{getattr(each, name):,.1f}" for name in _FIGURES),
            f"{each.tokens_per_s:,.0f}",
            end_section=each.variant == VARIANTS[-1].name,
        )
    return table


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
    bench.say_written()


if __name__ == "__main__":
    typer.run(main)
