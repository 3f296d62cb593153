"""A long steady load on a real server: ``python -m bench.soak``."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Annotated

import typer

from bench.__main__ import RESULTS
from bench.command import begin, measured_model, show_gate, title_of
from bench.record import append
from bench.soak.report import save_soak_plot, soak_table
from bench.soak.session import SoakPlan, SoakRun
from bench.soak.windows import MOST_DRIFT
from bench.workloads import Shape


def main(
    preset: Annotated[str, typer.Option(help="Model of `make-model`.")] = "micro",
    minutes: Annotated[float, typer.Option(min=0.1, help="Length of the load.")] = 20.0,
    load: Annotated[float, typer.Option(min=0.01, help="Share of the measured capacity.")] = 0.8,
    shape: Annotated[str, typer.Option(help="<query>+<item>x<items>, in tokens.")] = "60+2x50",
    clients: Annotated[int, typer.Option(min=1, help="Of the loop that finds the capacity.")] = 8,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between samples.")] = 5.0,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    flags: Annotated[str, typer.Option(help="Further flags of the server.")] = "",
    engines: Annotated[
        int, typer.Option(min=0, help="Behind a router, one core each; 0 for one server alone.")
    ] = 0,
    seed: Annotated[int, typer.Option()] = 0,
    name: Annotated[str, typer.Option(help="File name in bench/results.")] = "soak",
) -> None:
    """Look whether throughput, memory and pauses stay as they are."""
    console, context = begin("bench.soak")
    plan = SoakPlan(
        seconds=minutes * 60,
        load=load,
        shape=Shape.parse(shape),
        clients=clients,
        every_s=every,
        dtype=dtype,
        extension_args=tuple(shlex.split(flags)),
        engines=engines,
        seed=seed,
    )
    with measured_model(console, preset) as (model, status):
        run = SoakRun(preset, model, plan, status.update)
        verdict = run.run()
    console.print(soak_table(run.windows, verdict))
    console.print(f"aims: drifts within {MOST_DRIFT:.0%}, no long pause", highlight=False)
    show_gate(console, run.gate)
    found = {"preset": preset, "rate_per_s": run.rate_per_s, "verdict": asdict(verdict)}
    found |= {"reports": run.reports, "plan": asdict(plan), "gate": run.gate.as_dict()}
    append(RESULTS / f"{name}.jsonl", run.windows, found | context)
    over = f"{preset}, {engines} engines behind a router" if engines else preset
    title = f"{over}, {shape}, {load:.0%} load, {title_of(context)}"
    save_soak_plot(RESULTS / f"{name}.png", run.windows, title)
    console.print(f"written: {RESULTS / name}.jsonl, .png")
    raise typer.Exit(0 if verdict.passed else 1)


if __name__ == "__main__":
    typer.run(main)
