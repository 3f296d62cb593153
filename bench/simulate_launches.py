"""Compare when the next forward of a GPU is launched, by simulation:
``python -m bench.simulate_launches``."""

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
from bench.simulation.launches import IN_TIME, NOISE, WAITS, LaunchOutcome, simulate_launches
from bench.simulation.traffic import CostModel, draw_traffic

LOADS = [0.3, 0.5, 0.7, 0.95, 1.3]
HOST_MS = (1.0, 4.0)
"""A launch of a graph, and of all kernels one by one."""

_PANELS = (("mean_slowdown", "mean slowdown"), ("p99_ms", "P99"))


def table_of(outcomes: Sequence[LaunchOutcome]) -> Table:
    """Return a table with one line per host, load and way; a launch takes `host` ms."""
    columns = ("host", "load", "launched", "mean slowdown", "P99, ms", "per forward", "device busy")
    table = new_table("Launches", *columns, left=["launched"])
    for each in outcomes:
        table.add_row(
            f"{each.host_ms:g}",
            f"{each.load:.2f}",
            each.way,
            f"{each.mean_slowdown:.2f}",
            f"{each.p99_ms:.1f}",
            f"{each.requests_per_forward:.2f}",
            f"{each.busy:.0%}",
            end_section=each.way == IN_TIME,
        )
    return table


def ratios_of(outcomes: Sequence[LaunchOutcome], figure: str, host_ms: float) -> dict[float, float]:
    """Return by load a figure of `IN_TIME` over that of `WAITS`."""
    own = {
        (each.way, each.load): getattr(each, figure) for each in outcomes if each.host_ms == host_ms
    }
    return {load: own[IN_TIME, load] / other for (way, load), other in own.items() if way == WAITS}


def save_plot(path: Path, outcomes: Sequence[LaunchOutcome]) -> None:
    """Write a PNG: latencies of `IN_TIME` over those of `WAITS`; below 1 is better."""
    with picture(path, 1, 2, figsize=(9, 4), sharey=True) as panels:
        for panel, (figure, title) in zip(panels, _PANELS, strict=True):
            for host_ms in HOST_MS:
                ratios = ratios_of(outcomes, figure, host_ms)
                panel.plot(list(ratios), list(ratios.values()), "o-", label=f"host {host_ms:g} ms")
            panel.axhline(1.0, color="black", linewidth=0.8, linestyle="--")
            panel.set(xlabel="load", title=title)
        panels[0].set_ylabel(f"{IN_TIME}, over\n{WAITS}")
        panels[0].legend(fontsize=7)


def main(
    load: Annotated[
        list[float] | None,
        typer.Option(min=0.01, help="1 is what single forwards can just serve; repeatable."),
    ] = None,
    requests: Annotated[int, typer.Option(min=100, help="Requests per load.")] = 10_000,
    seed: Seed = 0,
    name: Name = "launches",
) -> None:
    """Compare times of the next launch on a GPU; a simulation, no server runs."""
    bench, cost = Bench("bench.simulate_launches", name, simulated=True), CostModel()
    settings = {"cost": asdict(cost), "requests": requests, "seed": seed, "noise": NOISE}
    outcomes = []
    for host_ms in HOST_MS:
        for each in load or LOADS:
            traffic = draw_traffic(each, requests, cost, seed)
            for way in (WAITS, IN_TIME):
                outcomes.append(simulate_launches(way, traffic, cost, host_ms, seed))
    bench.console.print(table_of(outcomes))
    bench.record(outcomes, **settings)
    save_plot(bench.picture, outcomes)
    bench.say_written()


if __name__ == "__main__":
    typer.run(main)
