"""Measure how long prompts slow down short ones on real servers: ``python -m bench.mixed``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from bench.command import Bench
from bench.drawing import new_table
from bench.mixed.mix import FCFS, MixPlan, MixResult
from bench.mixed.session import MixRun
from bench.options import Dtype, Flags, Name, Preset, Seed

LENGTHS = [32, 128, 512, 2048]

MAX_SLOWDOWN = 3.0
MAX_LONGEST = 1.1
"""Aims: the mean slowdown, and the P99 of the longest prompts over that with the extension's fcfs
order."""


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
        run = MixRun(model, plan, status.update)
        run.run()
    shown: list[object] = [mix_table(run.results)]
    shown.append(f"aims: all <= {MAX_SLOWDOWN:g}×, of fcfs <= {MAX_LONGEST:g}×")
    if any(min(each.length_slowdown.values()) < 1.0 for each in run.results):
        shown.append("[yellow]Slowdowns below 1: something disturbed the idle server.[/]")
    bench.report(run.gate, run.results, *shown, plan=asdict(plan))
    bench.say_written()


def mix_table(results: Sequence[MixResult]) -> Table:
    """Return a table with one line per load and variant. Values that meet their aim are green.

    It has the mean slowdown of all prompts and by length, and the P99 of the longest prompts.
    """
    lengths = [str(length) for length in results[0].length_slowdown]
    title = "Mean slowdown, of all and by tokens of the prompt"
    numbers = ("req/s", "all", *lengths, "per forward", f"P99 of {lengths[-1]}, ms", "of fcfs")
    table = new_table(title, "load", "variant", *numbers, left=["variant"])
    for each in results:
        of_fcfs = longest_of_fcfs(each, results)
        table.add_row(
            f"{each.load:.0%} of {each.load_of}",
            each.variant,
            f"{each.rate_per_s:.1f}",
            _judged(each.mean_slowdown, MAX_SLOWDOWN, 1),
            *(f"{slowdown:.1f}" for slowdown in each.length_slowdown.values()),
            "-" if each.requests_per_forward is None else f"{each.requests_per_forward:.1f}",
            f"{each.longest_p99_ms:,.0f}",
            "-" if of_fcfs is None else _judged(of_fcfs, MAX_LONGEST, 2),
        )
    return table


def longest_of_fcfs(result: MixResult, results: Sequence[MixResult]) -> float | None:
    """P99 of the longest prompts over that of the extension's fcfs order under the same load.

    None if fcfs was not measured under this load.
    """
    for each in results:
        if each.variant == FCFS and each.load_of == result.load_of:
            return result.longest_p99_ms / each.longest_p99_ms
    return None


def _judged(value: float, most: float, digits: int) -> str:
    return f"[{'green' if value <= most else 'yellow'}]{value:.{digits}f}×[/]"


if __name__ == "__main__":
    typer.run(main)
