"""Measure under load of tools that are not Python: ``python -m bench.load_generators --help``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from bench.command import Bench
from bench.load_generators.session import GeneratorRun
from bench.load_generators.tools import require
from bench.load_generators.wires import Wire
from bench.options import Alternations, Loads, Name, Preset, Seed, Shapes
from bench.score.plan import PATHS
from bench.score.plot import save_plot
from bench.score.report import closed_table, compare_paths, open_table
from bench.workloads import Load, OpenLoop, Shape, closed_first, parse_load
from sglang_prefill_ext.errors import ConfigError


def main(
    shape: Shapes = None,
    wire: Annotated[
        list[Wire] | None, typer.Option(help="Protocol and form of the requests; repeatable.")
    ] = None,
    load: Loads = None,
    preset: Preset = "micro",
    seconds: Annotated[float, typer.Option(min=1, help="Length of a measurement.")] = 6.0,
    alternations: Alternations = 2,
    front_ends: Annotated[int, typer.Option(min=1, help="Processes that serve gRPC.")] = 2,
    seed: Seed = 0,
    name: Name = "local-wires",
) -> None:
    """Measure stock and extension in turn by wrk (HTTP) and h2load (gRPC); ratios come first."""
    bench = Bench("bench.load_generators", name)
    wires = wire or list(Wire)
    shapes = [Shape.parse(each) for each in shape or ["60+2x50"]]
    with bench.measured_model(preset) as (model, status):
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
        if any(each.stock.closed is closed for each in comparisons):
            bench.console.print(table(comparisons))
    bench.show_gate(run.gate)
    facts = {"tools": sorted(set(tools)), "gate": run.gate.as_dict(), "front_ends": front_ends}
    bench.record(run.results, **facts)
    save_plot(bench.picture, comparisons, bench.title)
    bench.say_written()


def require_tools(loads: Sequence[Load], wires: Sequence[Wire]) -> None:
    """Check that there is a tool for every load on every wire.

    Raises:
        ConfigError: an open loop over gRPC, which h2load does not make.
    """
    if Wire.GRPC in wires and any(isinstance(load, OpenLoop) for load in loads):
        raise ConfigError("h2load makes no open loop; leave out --wire grpc or the rate.")


if __name__ == "__main__":
    typer.run(main)
