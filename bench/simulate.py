"""Compare scheduling orders by simulation: ``python -m bench.simulate``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from bench.command import Bench
from bench.drawing import new_table
from bench.options import Name, Seed
from bench.simulation.cache import CACHE_TOKENS
from bench.simulation.run import Outcome, simulate
from bench.simulation.traffic import LENGTHS, CostModel, draw_traffic
from bench.simulation.variants import SHARED, VARIANTS

LOADS = [0.7, 0.95, 1.3]
SHARES = [0.0, 0.5]
COST = CostModel()


def table_of(outcomes: Sequence[Outcome]) -> Table:
    """Return a table with one line per variant and load; the last column compares with fcfs.

    Args:
        outcomes: all with the same share of requests with a shared prefix.
    """
    shared = outcomes[0].shared
    requests = f"{shared:.0%} of the requests with a shared prefix"
    title = f"Mean slowdown, {requests if shared else 'no shared prefixes'}"
    lengths = [f"{length} tokens" for length in LENGTHS]
    columns = ("load", "variant", "all", *lengths, "per forward", "cached", "bound violated")
    table = new_table(title, *columns, "P99 of the longest, ms (of fcfs)", left=["variant"])
    fcfs = {each.load: each.longest_p99_ms for each in outcomes if each.variant == SHARED.name}
    for each in outcomes:
        table.add_row(
            f"{each.load:.2f}",
            each.variant,
            f"{each.mean_slowdown:.1f}",
            *(f"{slowdown:.1f}" for slowdown in each.class_slowdown.values()),
            f"{each.requests_per_forward:.1f}",
            f"{each.cached_share:.0%}",
            "-" if each.bound_violations is None else str(each.bound_violations),
            f"{each.longest_p99_ms:,.0f} ({each.longest_p99_ms / fcfs[each.load]:.2f}x)",
            end_section=each.variant == VARIANTS[-1].name,
        )
    return table


def main(
    load: Annotated[
        list[float] | None,
        typer.Option(
            min=0.01, help="1 just keeps a device busy with one request per forward; repeatable."
        ),
    ] = None,
    shared: Annotated[
        list[float] | None,
        typer.Option(min=0, max=1, help="Share of requests with a shared prefix; repeatable."),
    ] = None,
    requests: Annotated[int, typer.Option(min=100, help="Requests per load.")] = 20_000,
    launch_ms: Annotated[float, typer.Option(help="Cost of any forward.")] = COST.launch_ms,
    ms_per_token: Annotated[float, typer.Option()] = COST.ms_per_token,
    ms_per_row: Annotated[float, typer.Option()] = COST.ms_per_row,
    seed: Seed = 0,
    name: Name = "scheduling",
) -> None:
    """Compare scheduling orders for prompts of mixed lengths; a simulation, no server runs."""
    cost = CostModel(launch_ms, ms_per_token, ms_per_row)
    bench = Bench("bench.simulate", name, simulated=True)
    settings = {"cost": asdict(cost), "requests": requests, "seed": seed, "cache": CACHE_TOKENS}
    for share in dict.fromkeys(shared or SHARES):
        outcomes = []
        for each in load or LOADS:
            traffic = draw_traffic(each, requests, cost, seed, share)
            outcomes += [simulate(variant, traffic, cost) for variant in VARIANTS]
        bench.console.print(table_of(outcomes))
        bench.record(outcomes, **settings)
    bench.say_written()


if __name__ == "__main__":
    typer.run(main)
