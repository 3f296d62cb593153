"""Time the stages of a `/v1/score` request: ``python -m bench.breakdown --help``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer
from rich.table import Table

from bench.breakdown.live import Cost, measure
from bench.breakdown.stages import Stage, packed_stages, stock_stages
from bench.command import Bench
from bench.drawing import new_table
from bench.load_generators.wires import Wire, http_bodies
from bench.options import Preset, Seconds, Shapes
from bench.score.plan import PATHS
from bench.workloads import Shape, draw_requests
from sglang_prefill_ext.sizing.model import ModelShape

_FORMS = (Wire.IDS, Wire.ARRAYS)
_POOL = 64


def main(
    shape: Shapes = None,
    preset: Preset = "micro",
    seconds: Seconds = 5.0,
    live: Annotated[bool, typer.Option(help="Also measure on running servers.")] = True,
) -> None:
    """Print the time of each host stage of a request, and its cost on running servers."""
    bench = Bench("bench.breakdown")
    shapes = [Shape.parse(each) for each in shape or ["60+2x50", "62+0x1"]]
    with bench.measured_model(preset) as (model, status):
        vocabulary = ModelShape.from_directory(model).vocabulary
        pools: list[list[bytes]] = []
        for each in shapes:
            drawn = draw_requests(each, vocabulary, _POOL, seed=0)
            lists, arrays = (http_bodies(form, drawn, str) for form in _FORMS)
            pools.append(lists)
            status.update(f"{each}: stages")
            stock = list(stock_stages(lists[0], each.items))
            packed = [list(packed_stages(pool[0], vocabulary)) for pool in (lists, arrays)]
            bench.console.print(_stage_table(str(each), stock, *packed))
        if live:
            costs: list[list[Cost]] = []
            for path in PATHS:
                status.update(f"{path}: one client")
                costs.append(measure(model, path, pools, seconds))
            for each, stock_cost, packed_cost in zip(shapes, *costs, strict=True):
                bench.console.print(_cost_table(str(each), stock_cost, packed_cost))


def _stage_table(
    shape: str, stock: Iterable[Stage], lists: Iterable[Stage], arrays: Iterable[Stage]
) -> Table:
    columns = ("stage", "stock", "extension", "with arrays")
    table = new_table(f"{shape}: µs of one request", *columns, left=columns[:1])
    of_stock = {stage.name: f"{stage.us:.1f}" for stage in stock}
    for one, other in zip(lists, arrays, strict=True):
        table.add_row(one.name, of_stock.get(one.name, ""), f"{one.us:.1f}", f"{other.us:.1f}")
    return table


def _cost_table(shape: str, stock: Cost, packed: Cost) -> Table:
    title = f"{shape}, one client: µs a request"
    table = new_table(title, "stage", "stock", "extension", left=["stage"])
    table.add_row("latency, P50", f"{stock.latency_us:,.0f}", f"{packed.latency_us:,.0f}")
    table.add_row("of it forward and read-out", "", f"{packed.forward_us or 0:,.0f}")
    for role in sorted(stock.cpu_us | packed.cpu_us):
        spent = (f"{each.cpu_us.get(role, 0):,.0f}" for each in (stock, packed))
        table.add_row(f"CPU time, {role}", *spent)
    return table


if __name__ == "__main__":
    typer.run(main)
