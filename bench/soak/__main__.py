"""A long steady load on a real server: ``python -m bench.soak``."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Annotated

import typer

from bench.command import Bench
from bench.options import Dtype, Flags, Name, Preset
from bench.soak.report import soak_table
from bench.soak.session import SoakPlan, SoakRun
from bench.soak.windows import MOST_DRIFT


def main(
    preset: Preset = "micro",
    minutes: Annotated[float, typer.Option(min=0.1, help="Length of the load.")] = 20.0,
    load: Annotated[float, typer.Option(min=0.01, help="Share of the measured capacity.")] = 0.8,
    dtype: Dtype = "float32",
    flags: Flags = "",
    engines: Annotated[
        int,
        typer.Option(
            min=0, help="Engines behind a router, one core each; 0 for one server without a router."
        ),
    ] = 0,
    name: Name = "soak",
) -> None:
    """Check whether throughput, memory and pauses stay the same under a long load."""
    bench = Bench("bench.soak", name)
    plan = SoakPlan(
        seconds=minutes * 60,
        load=load,
        dtype=dtype,
        extension_args=tuple(shlex.split(flags)),
        engines=engines,
    )
    with bench.measured_model(preset) as (model, status):
        run = SoakRun(preset, model, plan, status.update)
        verdict = run.run()
    bench.console.print(soak_table(run.results, verdict))
    bench.console.print(f"aims: drifts within {MOST_DRIFT:.0%}, no long pause")
    bench.show_gate(run.gate)
    found = {"preset": preset, "rate_per_s": run.rate_per_s, "verdict": asdict(verdict)}
    found |= {"reports": run.reports, "plan": asdict(plan), "gate": run.gate.as_dict()}
    bench.record(run.results, **found)
    bench.say_written()
    raise typer.Exit(0 if verdict.passed else 1)


if __name__ == "__main__":
    typer.run(main)
