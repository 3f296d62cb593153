"""Short prompts behind long ones on real servers: ``python -m bench.mixed``."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Annotated

import typer

from bench.__main__ import RESULTS
from bench.command import begin, measured_model, show_gate, title_of
from bench.mixed.plan import MixPlan
from bench.mixed.report import MAX_LONGEST, MAX_SLOWDOWN, mix_table, save_mix_plot
from bench.mixed.session import MixRun
from bench.record import append

LENGTHS = [32, 128, 512, 2048]


def main(
    preset: Annotated[str, typer.Option(help="Model of `make-model`.")] = "micro",
    length: Annotated[
        list[int] | None, typer.Option(help="Tokens of a prompt, ascending; repeatable.")
    ] = None,
    load: Annotated[float, typer.Option(min=0.01, help="Share of the saturation rate.")] = 0.95,
    seconds: Annotated[float, typer.Option(help="Least seconds per load.")] = 60.0,
    saturation_seconds: Annotated[
        float, typer.Option(help="Least seconds of the closed loop that finds the rate.")
    ] = 15.0,
    clients: Annotated[int, typer.Option(min=1, help="Of that closed loop.")] = 16,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    flags: Annotated[str, typer.Option(help="Further flags of the extension's servers.")] = "",
    seed: Annotated[int, typer.Option()] = 0,
    name: Annotated[str, typer.Option(help="File name in bench/results.")] = "mixed",
) -> None:
    """Measure how much prompts of mixed lengths slow each other down, stock and extension."""
    console, context = begin("bench.mixed")
    plan = MixPlan(
        lengths=tuple(length or LENGTHS),
        load=load,
        seconds=seconds,
        saturation_seconds=saturation_seconds,
        clients=clients,
        dtype=dtype,
        extension_args=tuple(shlex.split(flags)),
        seed=seed,
    )
    with measured_model(console, preset) as (model, status):
        run = MixRun(preset, model, plan, status.update)
        run.run()
    console.print(mix_table(run.results))
    console.print(f"aims: all <= {MAX_SLOWDOWN:g}×, of fcfs <= {MAX_LONGEST:g}×", highlight=False)
    if any(min(each.length_slowdown.values()) < 1.0 for each in run.results):
        console.print("[yellow]Slowdowns below 1: something disturbed the idle server.[/]")
    show_gate(console, run.gate)
    append(
        RESULTS / f"{name}.jsonl",
        run.results,
        {"plan": asdict(plan), "gate": run.gate.as_dict(), **context},
    )
    title = title_of(context)
    save_mix_plot(RESULTS / f"{name}.png", run.results, title)
    console.print(f"written: {RESULTS / name}.jsonl, .png")


if __name__ == "__main__":
    typer.run(main)
