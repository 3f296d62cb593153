"""Compare scheduling orders by simulation: ``python -m bench.simulate``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from bench.command import Bench
from bench.drawing import new_table, picture
from bench.options import Name, Seed
from bench.simulation.cache import CACHE_TOKENS
from bench.simulation.run import Outcome, simulate
from bench.simulation.traffic import LENGTHS, CostModel, draw_traffic
from bench.simulation.variants import ALONE, SHARED, VARIANTS

LOADS = [0.7, 0.95, 1.3]
SHARES = [0.0, 0.5]
COST = CostModel()


def table_of(outcomes: Sequence[Outcome], shared: float) -> Table:
    """Return a table with one line per variant and load; the last column compares with fcfs.

    Args:
        shared: share of requests with a shared prefix, see `Traffic`; outcomes with another share
            are left out.
    """
    title = f"Mean slowdown, {_described(shared)}"
    lengths = [f"{length} tokens" for length in LENGTHS]
    columns = ("load", "variant", "all", *lengths, "per forward", "cached", "bound violated")
    table = new_table(title, *columns, "P99 of the longest, ms (of fcfs)", left=["variant"])
    own = [each for each in outcomes if each.shared == shared]
    fcfs = {each.load: each.longest_p99_ms for each in own if each.variant == SHARED.name}
    for each in own:
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


def save_plot(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write a PNG: a row per kind of traffic, a panel per load; nearer to the origin is better.

    The variant in which no requests share a forward is left out: its points would be far outside.
    """
    shares, loads = (
        list(dict.fromkeys(getattr(each, name) for each in outcomes)) for name in ("shared", "load")
    )
    layout = (len(shares), len(loads))
    size = (4 * len(loads), 4 * len(shares))
    with picture(path, *layout, figsize=size, squeeze=False) as rows:
        for panels, shared in zip(rows, shares, strict=True):
            for panel, load in zip(panels, loads, strict=True):
                own = [each for each in outcomes if (each.shared, each.load) == (shared, load)]
                _trade_off(panel, [each for each in own if each.variant != ALONE.name])
                panel.set_title(f"load {load:g}, {_described(shared)}", fontsize=8)
        rows[0, 0].legend(fontsize=7)


def _trade_off(panel: Any, outcomes: Sequence[Outcome]) -> None:
    srpt = [each for each in outcomes if each.variant.startswith("srpt")]
    panel.plot(*_places(srpt), color="lightgrey", zorder=0)
    markers = "sD^ooooX"
    for each, marker in zip(outcomes, markers, strict=True):
        panel.plot(*_places([each]), marker, label=each.variant, markersize=6, alpha=0.8)
    panel.set(xlabel="mean slowdown", ylabel=f"P99 of {LENGTHS[-1]} tokens, ms")


def _places(outcomes: Sequence[Outcome]) -> tuple[list[float], list[float]]:
    return [each.mean_slowdown for each in outcomes], [each.longest_p99_ms for each in outcomes]


def _described(shared: float) -> str:
    if not shared:
        return "no shared prefixes"
    return f"{shared:.0%} of the requests with a shared prefix"


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
    shares = list(dict.fromkeys(shared or SHARES))
    outcomes = []
    for share in shares:
        for each in load or LOADS:
            traffic = draw_traffic(each, requests, cost, seed, share)
            outcomes += [simulate(variant, traffic, cost) for variant in VARIANTS]
        bench.console.print(table_of(outcomes, share))
    bench.record(outcomes, **settings)
    save_plot(bench.picture, outcomes)
    bench.say_written()


if __name__ == "__main__":
    typer.run(main)
