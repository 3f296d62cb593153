"""Who gets which rows of a request, compared by simulation: ``python -m bench.fleet``."""

from __future__ import annotations

from dataclasses import asdict, replace
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.fleet.policies import POLICIES
from bench.fleet.report import save_plot, table_of
from bench.fleet.run import NOISE, Outcome, simulate
from bench.fleet.traffic import MEAN_TOKENS, SCENARIOS, SPEED, SPREAD, WORKLOADS, draw_traffic
from bench.record import append, run_context

RESULTS = Path(__file__).parents[1] / "results"
LOADS = [0.3, 0.5, 0.7, 0.8, 0.9]
TABLE_WIDTH = 160  # columns

WorkloadName = StrEnum("WorkloadName", [(each, each) for each in WORKLOADS])
ScenarioName = StrEnum("ScenarioName", [(each, each) for each in SCENARIOS])


def main(
    workload: Annotated[
        list[WorkloadName] | None, typer.Option(help="<query>+<item>x<items>; repeatable.")
    ] = None,
    scenario: Annotated[list[ScenarioName] | None, typer.Option(help="Repeatable.")] = None,
    replicas: Annotated[list[int] | None, typer.Option(min=2, help="Repeatable.")] = None,
    forward_tokens: Annotated[
        list[int] | None, typer.Option(min=1, help="Of a forward, at most; repeatable.")
    ] = None,
    load: Annotated[
        list[float] | None, typer.Option(min=0.01, help="1 is all that whole requests allow.")
    ] = None,
    requests: Annotated[int, typer.Option(min=20, help="Of each case and load.")] = 2000,
    seed: Annotated[int, typer.Option()] = 0,
    name: Annotated[str, typer.Option(help="File name in bench/results.")] = "fleet",
) -> None:
    """Compare balancers of a fleet on simulated replicas; nothing but arithmetic runs."""
    console = Console(width=TABLE_WIDTH)
    settings = {"speed": asdict(SPEED), "noise": NOISE, "tokens": [MEAN_TOKENS, SPREAD]}
    context = run_context("bench.fleet") | settings | {"requests": requests, "seed": seed}
    speeds = [replace(SPEED, max_forward_tokens=tokens) for tokens in forward_tokens or []]
    cases = product(
        workload or WORKLOADS, scenario or ["usual"], replicas or [8], speeds or [SPEED]
    )
    outcomes: list[Outcome] = []
    for each, happening, count, speed in cases:
        found = []
        for share in load or LOADS:
            scene = SCENARIOS[happening]
            traffic = draw_traffic(each, scene, share, count, requests, seed, speed)
            found += [
                simulate(policy, str(each), scene, traffic, count, seed) for policy in POLICIES
            ]
        console.print(table_of(found))
        append(RESULTS / f"{name}.jsonl", found, context)
        outcomes += found
    save_plot(RESULTS / f"{name}.png", outcomes)
    console.print(f"written: {RESULTS / name}.jsonl, .png")


if __name__ == "__main__":
    typer.run(main)
