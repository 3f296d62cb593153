"""Compare policies that divide requests over replicas, by simulation: ``python -m bench.fleet``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from bench.command import Bench
from bench.drawing import new_table, picture
from bench.fleet.policies import POLICIES
from bench.fleet.run import Outcome, simulate
from bench.fleet.simulation import NOISE
from bench.fleet.traffic import MEAN_TOKENS, SCENARIOS, SPEED, SPREAD, WORKLOADS, draw_traffic
from bench.options import Name, Seed

SCENARIOS_BY_DEFAULT = ["usual"]
LOADS = [0.3, 0.5, 0.7, 0.8, 0.9]
_FIGURES = {"p50_ms": "P50, ms", "p99_ms": "P99, ms", "extra_work": "extra work"}

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


def table_of(own: Sequence[Outcome]) -> Table:
    """Return a table of one case: one line per policy and load; the last columns compare P99."""
    figures = ("P50, ms", "P99, ms", "one item, P50", "extra work", "parts", "resent")
    columns = ("load", "policy", *figures, "P99 of split by count", "of oracle")
    table = new_table(_case(own[0]).replace("\n", " "), *columns, left=["policy"])
    for each in own:
        alike = [other for other in own if other.load == each.load]
        split = [other.p99_ms for other in alike if other.policy.startswith("split")]
        oracle = [other.p99_ms for other in alike if other.policy == "oracle"]
        table.add_row(
            f"{each.load:.2f}",
            each.policy,
            f"{each.p50_ms:,.0f}",
            f"{each.p99_ms:,.0f}",
            "" if each.one_item_p50_ms is None else f"{each.one_item_p50_ms:,.0f}",
            f"{each.extra_work:.1%}",
            f"{each.parts:.1f}",
            str(each.resent),
            _ratio(each.p99_ms, split),
            _ratio(each.p99_ms, oracle),
            end_section=each is alike[-1],
        )
    return table


def save_plot(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write a PNG: a column per case, with P50, P99 and extra work by load."""
    cases = list(dict.fromkeys(_case(each) for each in outcomes))
    size = (3.6 * len(cases), 8)
    with picture(path, len(_FIGURES), len(cases), figsize=size, squeeze=False) as rows:
        for column, case in zip(rows.T, cases, strict=True):
            own = [each for each in outcomes if _case(each) == case]
            column[0].set_title(case, fontsize=9)
            for panel, (figure_name, label) in zip(column, _FIGURES.items(), strict=True):
                _lines(panel, own, figure_name)
                panel.set(xlabel="load", ylabel=label)
        rows[0, 0].legend(fontsize=7)


def _lines(panel: Any, outcomes: Sequence[Outcome], figure: str) -> None:
    for number, policy in enumerate(POLICIES):
        own = [each for each in outcomes if each.policy == policy]
        loads, values = [each.load for each in own], [getattr(each, figure) for each in own]
        width = 2.5 if policy == "planned" else 1.2
        panel.plot(loads, values, "o-", color=f"C{number}", label=policy, lw=width, markersize=3)
    if figure != "extra_work":
        panel.set_yscale("log")


def _case(each: Outcome) -> str:
    fleet = f"{each.replicas} replicas, {each.forward_tokens:,} tokens a forward"
    return f"{each.workload}, {each.scenario},\n{fleet}"


def _ratio(value: float, others: Sequence[float]) -> str:
    """Divide a value by the least of the others."""
    return f"{value / min(others):.2f}x" if others else ""


if __name__ == "__main__":
    typer.run(main)
