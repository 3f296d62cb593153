"""Compare replicas that have all experts with experts divided over GPUs, by prediction:
``python -m bench.expert_parallelism``."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from itertools import product
from typing import Annotated

import typer

from bench.command import Bench
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
from bench.fleet.simulation import NOISE
from bench.moe.shapes import ROW_TIMES
from bench.options import Name, Seed
from sglang_prefill_ext.sizing.device import DEVICES
from sglang_prefill_ext.sizing.forward import Serving

DEVICES_BY_DEFAULT = ["h100-sxm", "h100-pcie"]

# Names that mypy cannot see, because they are not literals.
Model = StrEnum("Model", [(each, each) for each in MODELS])  # type: ignore[misc]
DeviceName = StrEnum("DeviceName", [(each, each) for each in DEVICES])  # type: ignore[misc]
Routing = StrEnum("Routing", [(each, each) for each in SKEWS])  # type: ignore[misc]


def main(
    model: Annotated[list[Model] | None, typer.Option(help="Repeatable.")] = None,
    device: Annotated[
        list[DeviceName] | None, typer.Option(help="Device with its link; repeatable.")
    ] = None,
    gpus: Annotated[
        list[int] | None, typer.Option(min=2, help="Number of GPUs; repeatable.")
    ] = None,
    routing: Annotated[
        list[Routing] | None, typer.Option(help="How tokens choose experts; repeatable.")
    ] = None,
    requests: Annotated[int, typer.Option(min=20, help="Requests of each comparison.")] = 2000,
    seed: Seed = 0,
    name: Name = "expert-parallelism",
) -> None:
    """Compare a fleet with expert parallelism by prediction; no server runs."""
    bench = Bench("bench.expert_parallelism", name, simulated=True)
    settings = {"workload": WORKLOAD, "load": LOAD, "lone_items": LONE_ITEMS, "noise": NOISE}
    settings |= {"row_times": ROW_TIMES, "requests": requests, "seed": seed}
    outcomes: list[Outcome] = []
    for case in product(model or MODELS, device or DEVICES_BY_DEFAULT, gpus or [2, 4, 8]):
        found = [
            outcome
            for kind in routing or SKEWS
            for outcome in outcomes_of(*case, kind, requests, seed)
        ]
        bench.console.print(table_of(found))
        bench.record(found, **settings, peaks=asdict(DEVICES[case[1]]))
        outcomes += found
    save_plot(bench.picture, outcomes)
    bench.console.print("predicted, not measured")
    bench.say_written()


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
    routing = routing_of(kind, shape.experts, shape.top_k, seed)
    one, outcomes = replica(serving, shape, routing), []
    for sends, placement in product(Sends, PLACEMENTS):
        balanced = placement == PLACEMENTS[1]
        together = expert_parallel(serving, shape, routing, gpus, sends, balanced=balanced)
        compared = compare(one, together, requests, seed)
        outcomes.append(Outcome(model, device, gpus, kind, sends, placement, compared))
    return outcomes


if __name__ == "__main__":
    typer.run(main)
