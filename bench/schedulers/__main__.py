"""Several schedulers on one device, measured and modelled: ``python -m bench.schedulers``."""

from __future__ import annotations

from typing import Annotated

import typer

from bench.__main__ import RESULTS
from bench.command import begin, measured_model, show_gate, title_of
from bench.record import append
from bench.schedulers.report import (
    measured_table,
    model_table,
    off_by,
    save_schedulers_plot,
)
from bench.schedulers.session import SchedulersRun
from bench.workloads import Shape

MODELLED = (2, 3, 4)


def main(
    preset: Annotated[str, typer.Option(help="Model of `make-model`.")] = "micro",
    shape: Annotated[str, typer.Option(help="<query>+<item>x<items>.")] = "60+2x50",
    schedulers: Annotated[
        list[int] | None, typer.Option(min=1, help="Beside stock and 1; repeatable.")
    ] = None,
    clients: Annotated[int, typer.Option(min=1, help="Of the closed loop.")] = 16,
    seconds: Annotated[float, typer.Option(help="Least seconds per measurement.")] = 8.0,
    model_only: Annotated[
        bool, typer.Option("--model-only", help="Print the model; start no server.")
    ] = False,
    name: Annotated[str, typer.Option(help="File name in bench/results.")] = "schedulers",
) -> None:
    """Measure stock, one scheduler and several in turn, and print the model beside them."""
    console, context = begin("bench.schedulers")
    if not model_only:
        with measured_model(console, preset) as (model, status):
            run = SchedulersRun(model, Shape.parse(shape), clients, seconds, status.update)
            run.run(schedulers or [2])
        console.print(measured_table(run.results))
        for line in off_by(run.results):
            console.print(line, highlight=False)
        show_gate(console, run.gate)
        append(RESULTS / f"{name}.jsonl", run.results, {"gate": run.gate.as_dict(), **context})
        title = title_of(context)
        save_schedulers_plot(RESULTS / f"{name}.png", run.results, title)
        console.print(f"written: {RESULTS / name}.jsonl, .png")
    console.print(model_table(MODELLED))


if __name__ == "__main__":
    typer.run(main)
