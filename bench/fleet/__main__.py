"""Compare policies that divide requests over replicas, by simulation: ``python -m bench.fleet``."""

from __future__ import annotations

from dataclasses import asdict, replace
from enum import StrEnum
from itertools import product
from typing import Annotated

import typer

from bench.command import Bench
from bench.fleet.policies import POLICIES
from bench.fleet.report import save_plot, table_of
from bench.fleet.run import Outcome, simulate
from bench.fleet.simulation import NOISE
from bench.fleet.traffic import MEAN_TOKENS, SCENARIOS, SPEED, SPREAD, WORKLOADS, draw_traffic
from bench.options import Name, Seed

SCENARIOS_BY_DEFAULT = ["usual"]
LOADS = [0.3, 0.5, 0.7, 0.8, 0.9]

# Names that mypy cannot see, because they are not literals.
WorkloadName = StrEnum("WorkloadName", [(each, each) for each in WORKLOADS])  # type: ignore[misc]
ScenarioName = StrEnum("ScenarioName", [(each, each) for each in SCENARIOS])  # type: ignore[misc]


def main(
    workload: Annotated[
        list[WorkloadName] | None, typer.Option(help="<query>+<item>x<items>; repeatable.")
    ] = None,
    scenario: Annotated[list[ScenarioName] | None, typer.Option(help="Repeatable.")] = None,
    replicas: Annotated[list[int] | None, typer.Option(min=2, help="Repeatable.")] = None,
    forward_tokens: Annotated[
        list[int] | None, typer.Option(min=1, help="Most tokens of a forward; repeatable.")
    ] = None,
    load: Annotated[
        list[float] | None,
        typer.Option(min=0.01, help="1 just keeps all replicas busy with undivided requests."),
    ] = None,
    requests: Annotated[int, typer.Option(min=20, help="Requests of each case and load.")] = 2000,
    seed: Seed = 0,
    name: Name = "fleet",
) -> None:
    """Compare balancing policies of a fleet on simulated replicas; no server runs."""
    bench = Bench("bench.fleet", name, simulated=True)
    settings = {"speed": asdict(SPEED), "noise": NOISE, "tokens": [MEAN_TOKENS, SPREAD]}
    settings |= {"requests": requests, "seed": seed}
    speeds = [replace(SPEED, max_forward_tokens=tokens) for tokens in forward_tokens or []]
    cases = product(
        workload or WORKLOADS, scenario or SCENARIOS_BY_DEFAULT, replicas or [8], speeds or [SPEED]
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
        bench.console.print(table_of(found))
        bench.record(found, **settings)
        outcomes += found
    save_plot(bench.picture, outcomes)
    bench.say_written()


if __name__ == "__main__":
    typer.run(main)
