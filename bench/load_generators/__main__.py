"""Measure under load of tools that are not Python: ``python -m bench.load_generators --help``."""

from __future__ import annotations

from typing import Annotated

import typer

from bench.command import Bench
from bench.load_generators.session import GeneratorRun
from bench.load_generators.tools import require
from bench.load_generators.wires import Wire
from bench.options import Alternations, Clients, Name, Preset, Shapes
from bench.score.plan import PATHS
from bench.score.plot import save_plot
from bench.score.report import closed_table, compare_paths
from bench.workloads import Shape


def main(
    shape: Shapes = None,
    wire: Annotated[
        list[Wire] | None, typer.Option(help="Protocol and form of the requests; repeatable.")
    ] = None,
    clients: Clients = None,
    preset: Preset = "micro",
    seconds: Annotated[float, typer.Option(min=1, help="Length of a measurement.")] = 6.0,
    alternations: Alternations = 2,
    front_ends: Annotated[int, typer.Option(min=1, help="Processes that serve gRPC.")] = 2,
    name: Name = "local-wires",
) -> None:
    """Measure stock and extension in turn by wrk (HTTP) and h2load (gRPC); ratios come first."""
    bench = Bench("bench.load_generators", name)
    wires = wire or list(Wire)
    shapes = [Shape.parse(each) for each in shape or ["60+2x50"]]
    with bench.measured_model(preset) as (model, status):
        tools = [require("h2load" if each is Wire.GRPC else "wrk") for each in (Wire.IDS, *wires)]
        run = GeneratorRun(model, shapes, wires, clients or [8], seconds, front_ends)
        for repeat in range(alternations):
            for path in PATHS:
                status.update(f"{preset}: start {repeat + 1} of {path}")
                run.measure(path, repeat)
    comparisons = compare_paths(run.results)
    facts = {"tools": sorted(set(tools)), "front_ends": front_ends}
    bench.report(run.gate, run.results, closed_table(comparisons), **facts)
    save_plot(bench.picture, comparisons, bench.title)
    bench.say_written()


if __name__ == "__main__":
    typer.run(main)
