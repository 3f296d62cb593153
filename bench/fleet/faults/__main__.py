"""Cause faults in a fleet under load, and judge every answer: ``python -m bench.fleet.faults``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any

import typer

from bench.command import Bench
from bench.drawing import picture
from bench.fleet.faults.schedule import draw_faults
from bench.fleet.faults.session import FaultsResult, FaultsRun
from bench.options import Name

_SHOWN = 20
_LABEL_CHARS = 60
_ROW_INCHES = 0.3


def main(
    faults: Annotated[int, typer.Option(min=1, help="Number of faults.")] = 1000,
    minutes: Annotated[float, typer.Option(min=0.1, help="Time in which faults begin.")] = 25.0,
    engines: Annotated[int, typer.Option(min=1)] = 2,
    routers: Annotated[int, typer.Option(min=1, help="Router processes.")] = 2,
    clients: Annotated[int, typer.Option(min=1)] = 6,
    deadline_s: Annotated[float, typer.Option(min=1, help="Deadline of every request.")] = 15.0,
    seed: Annotated[int, typer.Option(help="Seed of the faults.")] = 0,
    name: Name = "fleet-faults",
) -> None:
    """Stop, kill and cut engines, routers and connections, and judge every answer.

    The exit status is 1 if an answer was wrong, lost or late, or if memory or work was kept.
    """
    bench = Bench("bench.fleet.faults", name)
    with bench.measured_model("reranker") as (model, _):
        drawn = draw_faults(faults, minutes, seed)
        run = FaultsRun(model, drawn, engines, routers, clients, deadline_s, bench.console.print)
        result = run.run()
    for what, count in (*result.faults.items(), *result.errors.items()):
        bench.console.print(f"{count:5d} {what}")
    bench.console.print(
        f"{result.requests} requests: {result.right} right, {result.clear_errors} clear errors, "
        f"{result.wrong} wrong, {result.lost} lost, {result.late} late; "
        f"{result.sent_again} sent again; P50 {result.p50_ms:.0f} ms, P99 {result.p99_ms:.0f} ms, "
        f"longest {result.longest_ms:.0f} ms"
    )
    for each in run.unwanted[:_SHOWN]:
        bench.console.print(f"{each.end}, {each.seconds:.1f} s: {each.why}", style="red")
    bench.record([result], seed=seed)
    save_faults_plot(bench.picture, result)
    if run.unwanted:
        raise typer.Exit(1)


def save_faults_plot(path: Path, result: FaultsResult) -> None:
    """Write a PNG, overwriting the file: faults by kind, beside requests by how they ended."""
    ends = {
        "right": result.right,
        **result.errors,
        "wrong": result.wrong,
        "lost": result.lost,
        "late": result.late,
    }
    rows = max(len(result.faults), len(ends))
    size = (11, 1.2 + _ROW_INCHES * rows)
    times = f"P50 {result.p50_ms:.0f} ms, P99 {result.p99_ms:.0f} ms"
    with picture(path, 1, 2, figsize=size) as (left, right):
        _bars(
            left, result.faults, f"{sum(result.faults.values())} faults in {result.seconds:.0f} s"
        )
        _bars(right, ends, f"{result.requests} requests, {times}", log=True)


def _bars(panel: Any, counts: Mapping[str, int], title: str, *, log: bool = False) -> None:
    names = [shorten(name, _LABEL_CHARS) for name in counts]
    bars = panel.barh(range(len(names)), list(counts.values()), color="#4878a8")
    panel.bar_label(bars, fontsize=7, padding=2)
    panel.set_yticks(range(len(names)), names, fontsize=7)
    panel.invert_yaxis()
    if log:
        panel.set_xscale("symlog")
    panel.margins(x=0.15)
    panel.set_title(title, fontsize=9)


if __name__ == "__main__":
    typer.run(main)
