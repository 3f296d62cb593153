"""A router over engines with a core each, and one such engine: ``python -m bench.fleet.live``."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer

from bench.__main__ import RESULTS
from bench.command import begin, measured_model, show_gate, title_of
from bench.fleet.engines import cores_for, engines_on, router
from bench.fleet.options import CLIENTS, SHAPES, Clients, Preset, Seconds, Shapes, TurnCount
from bench.fleet.turns import Turns, cases_of, compare_turns
from bench.fleet.turns_plot import save_turns_plot
from bench.record import append

ALONE = "one engine"


def main(
    preset: Preset = "tiny",
    shapes: Shapes = None,
    clients: Clients = None,
    engines: Annotated[int, typer.Option(min=1, help="One core each.")] = 2,
    seconds: Seconds = 2.0,
    turns: TurnCount = 7,
    name: Annotated[str, typer.Option(help="File name in bench/results.")] = "fleet-live",
) -> None:
    """Measure one engine, the same behind a router, and a router over several, in turn."""
    console, context = begin("bench.fleet.live")
    with measured_model(console, preset) as (model, status), ExitStack() as stack:
        ports = stack.enter_context(engines_on(model, cores_for(engines), status.update))
        subjects = {
            ALONE: ports[0],
            "one engine behind a router": stack.enter_context(router(ports[:1])).port,
            f"{engines} engines behind a router": stack.enter_context(router(ports)).port,
        }
        run = Turns(preset, subjects, seconds, turns, status.update)
        run.run(cases_of(model, shapes or SHAPES), clients or CLIENTS)
    found = compare_turns(run.results, ALONE)
    for each in found:
        console.print(str(each), highlight=False)
    show_gate(console, run.gate)
    append(RESULTS / f"{name}.jsonl", run.results, {"gate": run.gate.as_dict(), **context})
    save_turns_plot(RESULTS / f"{name}.png", found, ALONE, f"{preset}, {title_of(context)}")
    console.print(f"written: {RESULTS / name}.jsonl, .png")


if __name__ == "__main__":
    typer.run(main)
