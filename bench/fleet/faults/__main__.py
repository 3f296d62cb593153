"""Cause faults in a fleet under load, and judge every answer: ``python -m bench.fleet.faults``."""

from __future__ import annotations

from typing import Annotated

import typer

from bench.command import Bench
from bench.fleet.faults.plot import save_faults_plot
from bench.fleet.faults.schedule import draw_faults
from bench.fleet.faults.session import FaultsRun
from bench.options import Name

_SHOWN = 20


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


if __name__ == "__main__":
    typer.run(main)
