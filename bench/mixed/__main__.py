"""Measure how long prompts slow down short ones on real servers: ``python -m bench.mixed``."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Annotated

import typer

from bench.command import Bench
from bench.mixed.plan import MixPlan
from bench.mixed.report import MAX_LONGEST, MAX_SLOWDOWN, mix_table
from bench.mixed.session import MixRun
from bench.options import Dtype, Flags, Name, Preset, Seed

LENGTHS = [32, 128, 512, 2048]


def main(
    preset: Preset = "micro",
    length: Annotated[
        list[int] | None, typer.Option(help="Tokens of a prompt, ascending; repeatable.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Least seconds per load.")] = 60.0,
    saturation_seconds: Annotated[
        float, typer.Option(help="Least seconds of the closed loop that finds the rate.")
    ] = 15.0,
    dtype: Dtype = "float32",
    flags: Flags = "",
    seed: Seed = 0,
    name: Name = "mixed",
) -> None:
    """Measure how much prompts of mixed lengths slow each other down, stock and extension."""
    bench = Bench("bench.mixed", name)
    plan = MixPlan(
        lengths=tuple(length or LENGTHS),
        seconds=seconds,
        saturation_seconds=saturation_seconds,
        dtype=dtype,
        extension_args=tuple(shlex.split(flags)),
        seed=seed,
    )
    with bench.measured_model(preset) as (model, status):
        run = MixRun(preset, model, plan, status.update)
        run.run()
    bench.console.print(mix_table(run.results))
    bench.console.print(f"aims: all <= {MAX_SLOWDOWN:g}×, of fcfs <= {MAX_LONGEST:g}×")
    if any(min(each.length_slowdown.values()) < 1.0 for each in run.results):
        bench.console.print("[yellow]Slowdowns below 1: something disturbed the idle server.[/]")
    bench.show_gate(run.gate)
    bench.record(run.results, plan=asdict(plan), gate=run.gate.as_dict())
    bench.say_written()


if __name__ == "__main__":
    typer.run(main)
