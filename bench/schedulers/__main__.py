"""Measure and model several schedulers on one device: ``python -m bench.schedulers``."""

from __future__ import annotations

from typing import Annotated

import typer

from bench.command import Bench
from bench.options import Name, Preset, Seconds, ShapeText
from bench.schedulers.report import measured_table, model_table, off_by
from bench.schedulers.session import SchedulersRun
from bench.workloads import Shape

MODELLED = (2, 3, 4)


def main(
    preset: Preset = "micro",
    shape: ShapeText = "60+2x50",
    schedulers: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Schedulers to measure besides stock and 1; repeatable."),
    ] = None,
    clients: Annotated[int, typer.Option(min=1, help="Clients of the closed loop.")] = 16,
    seconds: Seconds = 8.0,
    model_only: Annotated[
        bool, typer.Option("--model-only", help="Print the model; start no server.")
    ] = False,
    name: Name = "schedulers",
) -> None:
    """Measure stock, one scheduler and several in turn; print the model's predictions beside."""
    bench = Bench("bench.schedulers", name)
    if not model_only:
        with bench.measured_model(preset) as (model, status):
            run = SchedulersRun(model, Shape.parse(shape), clients, seconds, status.update)
            run.run(schedulers or [2])
        bench.report(run.gate, run.results, measured_table(run.results), *off_by(run.results))
        bench.say_written()
    bench.console.print(model_table(MODELLED))


if __name__ == "__main__":
    typer.run(main)
