"""Measure a router over engines with one core each, and one such engine alone:
``python -m bench.fleet.live``."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer

from bench.command import Bench
from bench.fleet.engines import cores_for, engines_on, router
from bench.fleet.turns import Turns, cases_of, compare_turns, save_turns_plot
from bench.options import CLIENTS, SHAPES, Clients, Name, Preset, Seconds, Shapes, TurnCount

ALONE = "one engine"


def main(
    preset: Preset = "tiny",
    shapes: Shapes = None,
    clients: Clients = None,
    engines: Annotated[int, typer.Option(min=1, help="Engines, on one core each.")] = 2,
    seconds: Seconds = 2.0,
    turns: TurnCount = 7,
    name: Name = "fleet-live",
) -> None:
    """Measure one engine, a router over it, and a router over several engines, in turn."""
    bench = Bench("bench.fleet.live", name)
    with bench.measured_model(preset) as (model, status), ExitStack() as stack:
        ports = stack.enter_context(engines_on(model, cores_for(engines), status.update))
        subjects = {
            ALONE: ports[0],
            "one engine behind a router": stack.enter_context(router(ports[:1])).port,
            f"{engines} engines behind a router": stack.enter_context(router(ports)).port,
        }
        run = Turns(preset, subjects, seconds, turns, status.update)
        run.run(cases_of(model, shapes or SHAPES), clients or CLIENTS)
    found = compare_turns(run.results, ALONE)
    bench.report(run.gate, run.results, *found)
    save_turns_plot(bench.picture, found, ALONE, f"{preset}, {bench.title}")
    bench.say_written()


if __name__ == "__main__":
    typer.run(main)
