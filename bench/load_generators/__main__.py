"""Load by tools that are not Python: ``python -m bench.load_generators --help``."""

from __future__ import annotations

from typing import Annotated

import typer

from bench.__main__ import RESULTS
from bench.command import begin, measured_model, show_gate, title_of
from bench.load_generators.loads import require_tools
from bench.load_generators.session import GeneratorRun
from bench.load_generators.tools import require
from bench.load_generators.wires import Wire
from bench.plan import PATHS
from bench.plot import save_plot
from bench.record import append
from bench.report import closed_table, compare_paths, open_table
from bench.workloads import Shape, closed_first, parse_load


def main(
    shape: Annotated[
        list[str] | None, typer.Option(help="<query>+<item>x<items>; repeatable.")
    ] = None,
    wire: Annotated[list[Wire] | None, typer.Option(help="What travels; repeatable.")] = None,
    load: Annotated[
        list[str] | None,
        typer.Option(help="Clients (8), rate (12.5/s) or share of stock (70%); repeatable."),
    ] = None,
    preset: Annotated[str, typer.Option(help="Model of `make-model`.")] = "micro",
    seconds: Annotated[float, typer.Option(min=1, help="Of a measurement.")] = 6.0,
    alternations: Annotated[
        int, typer.Option(min=1, help="Starts of each server, in turn: A B A B.")
    ] = 2,
    front_ends: Annotated[int, typer.Option(min=1, help="Processes that serve gRPC.")] = 2,
    seed: Annotated[int, typer.Option()] = 0,
    name: Annotated[str, typer.Option(help="File name in bench/results.")] = "local-wires",
) -> None:
    """Measure stock and extension in turn by wrk (HTTP) and h2load (gRPC), the ratio first."""
    console, context = begin("bench.load_generators")
    wires = wire or list(Wire)
    shapes = [Shape.parse(each) for each in shape or ["60+2x50"]]
    with measured_model(console, preset) as (model, status):
        tools = [require("h2load" if each is Wire.GRPC else "wrk") for each in (Wire.IDS, *wires)]
        loads = closed_first(map(parse_load, load or ["8"]))
        require_tools(loads, wires)
        run = GeneratorRun(model, shapes, wires, loads, seconds, front_ends, seed)
        for repeat in range(alternations):
            for path in PATHS:
                status.update(f"{preset}: start {repeat + 1} of {path}")
                run.measure(path, repeat)
    comparisons = compare_paths(run.results)
    for closed, table in ((True, closed_table), (False, open_table)):
        if any(each.closed is closed for each in comparisons):
            console.print(table(comparisons))
    show_gate(console, run.gate)
    context |= {"tools": sorted(set(tools)), "gate": run.gate.as_dict(), "front_ends": front_ends}
    append(RESULTS / f"{name}.jsonl", run.results, context)
    title = title_of(context)
    save_plot(RESULTS / f"{name}.png", comparisons, title)
    console.print(f"written: {RESULTS / name}.jsonl, .png")


if __name__ == "__main__":
    typer.run(main)
