"""Replicas with all experts against experts on several GPUs, predicted:
``python -m bench.expert_parallelism``."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.expert_parallelism.cases import (
    COPIES_SHARE,
    MODELS,
    SKEWS,
    expert_parallel,
    replica,
    routing_of,
    shape_of,
)
from bench.expert_parallelism.compare import LOAD, LONE_ITEMS, WORKLOAD, compare
from bench.expert_parallelism.cost import Sends
from bench.expert_parallelism.report import PLACEMENTS, Outcome, save_plot, table_of
from bench.fleet.run import NOISE
from bench.moe.shapes import ROW_TIMES
from bench.record import append, run_context
from sglang_prefill_ext.sizing.device import DEVICES
from sglang_prefill_ext.sizing.forward import Serving

RESULTS = Path(__file__).parents[1] / "results"
TABLE_WIDTH = 160  # columns

Model = StrEnum("Model", [(each, each) for each in MODELS])
DeviceName = StrEnum("DeviceName", [(each, each) for each in DEVICES])
Routing = StrEnum("Routing", [(each, each) for each in SKEWS])


def main(
    model: Annotated[list[Model] | None, typer.Option(help="Repeatable.")] = None,
    device: Annotated[list[DeviceName] | None, typer.Option(help="With its link.")] = None,
    gpus: Annotated[list[int] | None, typer.Option(min=2, help="Repeatable.")] = None,
    routing: Annotated[list[Routing] | None, typer.Option(help="Repeatable.")] = None,
    requests: Annotated[int, typer.Option(min=20, help="Of each comparison.")] = 2000,
    seed: Annotated[int, typer.Option()] = 0,
    name: Annotated[str, typer.Option(help="File name in bench/results.")] = "expert-parallelism",
) -> None:
    """Compare a fleet with expert parallelism; nothing but arithmetic runs."""
    console = Console(width=TABLE_WIDTH)
    settings = {"workload": WORKLOAD, "load": LOAD, "lone_items": LONE_ITEMS, "noise": NOISE}
    assumed = {"row_times": ROW_TIMES, "requests": requests, "seed": seed}
    context = run_context("bench.expert_parallelism") | settings | assumed
    outcomes: list[Outcome] = []
    for case in product(model or MODELS, device or ["h100-sxm", "h100-pcie"], gpus or [2, 4, 8]):
        found = [
            outcome
            for kind in routing or SKEWS
            for outcome in outcomes_of(*case, kind, requests, seed)
        ]
        console.print(table_of(found))
        append(RESULTS / f"{name}.jsonl", found, context | {"peaks": asdict(DEVICES[case[1]])})
        outcomes += found
    save_plot(RESULTS / f"{name}.png", outcomes)
    console.print(f"predicted, not measured; written: {RESULTS / name}.jsonl, .png")


def outcomes_of(
    model: str, device: str, gpus: int, kind: str, requests: int, seed: int
) -> list[Outcome]:
    """Compare a fleet with every way to send tokens and to place experts.

    Raises:
        typer.BadParameter: experts and their copies cannot be divided evenly.
    """
    serving, shape = Serving(MODELS[model], DEVICES[device]), shape_of(model)
    if shape.experts // COPIES_SHARE % gpus:
        raise typer.BadParameter(f"{gpus} GPUs: give 2, 4, 8 or 16.", param_hint="--gpus")
    routing = routing_of(kind, shape, seed)
    one, outcomes = replica(serving, shape, routing), []
    for sends, placement in product(Sends, PLACEMENTS):
        balanced = placement == PLACEMENTS[1]
        together = expert_parallel(serving, shape, routing, gpus, sends, balanced=balanced)
        compared = compare(one, together, requests, seed)
        outcomes.append(Outcome(model, device, gpus, kind, sends, placement, compared))
    return outcomes


if __name__ == "__main__":
    typer.run(main)
