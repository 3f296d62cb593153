"""Command line of the benchmark: ``python -m bench --help``."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from bench.command import Bench
from bench.options import (
    Alternations,
    Dtype,
    Flags,
    Loads,
    Name,
    RadixCache,
    Results,
    ServerFlags,
    Shapes,
)
from bench.score.plan import Case, Plan, make_cases
from bench.score.plot import save_plot
from bench.score.report import Comparison, closed_table, compare_paths, open_table
from bench.score.session import ModelRun
from bench.server import env_of_wheel
from bench.workloads import Shape, parse_load
from sglang_prefill_ext.modelmaker import make_model

PRESETS = ["micro", "tiny"]
SHAPES = ["62+0x1", "60+2x50", "50+150x50", "120+180x10"]
EXTENSION_ARGS = ("--enable-prefill-only",)
LOADS = ["1", "4", "8", "70%"]
QUICK_LOADS = ["8", "70%"]
SECONDS, QUICK_SECONDS = 6.0, 3.0


def main(
    quick: Annotated[
        bool, typer.Option("--quick", help="A few minutes: one model, fewer loads, shorter.")
    ] = False,
    preset: Annotated[
        list[str] | None, typer.Option(help="Model of `make-model`; repeatable.")
    ] = None,
    model: Annotated[
        list[Path] | None,
        typer.Option(help="Directory of a model to use instead of presets; repeatable."),
    ] = None,
    shapes: Shapes = None,
    loads: Loads = None,
    seconds: Annotated[float | None, typer.Option(help="Least seconds per measurement.")] = None,
    alternations: Alternations = 2,
    dtype: Dtype = "float32",
    text: Annotated[bool, typer.Option("--text", help="Send text instead of token ids.")] = False,
    self_check: Annotated[
        bool, typer.Option("--self-check", help="Stock against stock: the ratio must be about 1.")
    ] = False,
    radix_cache: RadixCache = False,
    repeated: Annotated[
        bool,
        typer.Option(
            "--repeated",
            help="Leave the prefix cache on in both servers, and send few requests over and over.",
        ),
    ] = False,
    side_by_side: Annotated[
        bool,
        typer.Option(
            "--side-by-side",
            help="Start each server once, and measure them in turn while the other is paused.",
        ),
    ] = False,
    server_flags: ServerFlags = "",
    flags: Flags = "",
    against: Annotated[
        str | None,
        typer.Option(help="Compare with a second extension server with these flags, not stock."),
    ] = None,
    against_wheel: Annotated[
        Path | None,
        typer.Option(help="Compare with a server of this wheel of the extension, not stock."),
    ] = None,
    name: Name = "local",
    results: Results = None,
    logs: Annotated[
        Path | None, typer.Option(help="Folder of the servers' logs; by default none are kept.")
    ] = None,
) -> None:
    """Measure stock SGLang and the extension in turn on this machine; print the ratio first."""
    bench = Bench("bench", name, results)
    if against_wheel is not None and against is None:
        against = flags
    with bench.no_figures_on_error(), tempfile.TemporaryDirectory(prefix="bench-") as other:
        plan = Plan(
            loads=tuple(parse_load(each) for each in loads or (QUICK_LOADS if quick else LOADS)),
            seconds=seconds or (QUICK_SECONDS if quick else SECONDS),
            alternations=alternations,
            dtype=dtype,
            extension_args=() if self_check else (*EXTENSION_ARGS, *shlex.split(flags)),
            stock_args=() if against is None else (*EXTENSION_ARGS, *shlex.split(against)),
            args_of_both=tuple(shlex.split(server_flags)),
            stock_env={} if against_wheel is None else env_of_wheel(against_wheel, Path(other)),
            radix_cache=radix_cache or repeated,
            repeated=repeated,
            side_by_side=side_by_side,
        )
        presets = preset or (PRESETS[:1] if quick else PRESETS)
        drawn = [Shape.parse(each) for each in shapes or SHAPES]
        cases_of = partial(make_cases, shapes=drawn, text=text, count=plan.pool_requests())
        runs = measure([] if model else presets, model or [], cases_of, plan, logs, bench)
    show(runs, bench)
    for run in runs:
        facts = {"dtype": plan.dtype, "text": text, "gate": run.gate.as_dict()}
        bench.record(run.results, **facts)
    save_plot(bench.picture, _compared(runs), bench.title)
    bench.say_written()


def measure(
    presets: list[str],
    models: list[Path],
    cases_of: Callable[[Path], list[Case]],
    plan: Plan,
    logs: Path | None,
    bench: Bench,
) -> list[ModelRun]:
    """Run the plan on each model.

    Args:
        presets: models to make in a temporary directory.
        models: directories of existing models.
        cases_of: prepares the requests for the model in a directory.
        logs: folder for the servers' logs; None: the temporary directory.
    """
    runs = []
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        bench.console.status("") as status,
    ):
        made = [Path(directory) / preset for preset in presets]
        for model in (*made, *models):
            if model in made:
                status.update(f"{model.name}: making the model")
                make_model(model.name, model)
            run = ModelRun(model, plan, status.update, logs or Path(directory))
            run.run(cases_of(model))
            runs.append(run)
    return runs


def show(runs: list[ModelRun], bench: Bench) -> None:
    """Print the tables, ratio first, and how far the compared answers differ."""
    comparisons = _compared(runs)
    bench.console.print(closed_table(comparisons), open_table(comparisons))
    for run in runs:
        bench.show_gate(run.gate)
    if comparisons and comparisons[0].repeats == 1:
        bench.console.print("Each server was started once: no range, and the order may matter.")


def _compared(runs: list[ModelRun]) -> list[Comparison]:
    return compare_paths([result for run in runs for result in run.results])


if __name__ == "__main__":
    typer.run(main)
