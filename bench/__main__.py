"""Command line of the benchmark: ``python -m bench --help``."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bench.command import begin, no_figures_on_error, show_gate, title_of
from bench.plan import Plan
from bench.plot import save_plot
from bench.record import append
from bench.report import closed_table, compare_paths, open_table
from bench.server import env_of_wheel
from bench.session import ModelRun
from bench.workloads import Shape, parse_load
from sglang_prefill_ext.modelmaker import make_model

RESULTS = Path(__file__).parent / "results"
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
        typer.Option(help="Directory of a model, in the place of presets; repeatable."),
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(help="<query>+<item>x<items>; repeatable.")
    ] = None,
    load: Annotated[
        list[str] | None,
        typer.Option(help="Clients (8), rate (12.5/s) or share of stock (70%); repeatable."),
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="Least seconds per measurement.")] = None,
    alternations: Annotated[
        int, typer.Option(min=1, help="Measurements of each server, in turn: A B A B.")
    ] = 2,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    text: Annotated[bool, typer.Option("--text", help="Send text instead of token ids.")] = False,
    self_check: Annotated[
        bool, typer.Option("--self-check", help="Stock against stock: the ratio must be about 1.")
    ] = False,
    radix_cache: Annotated[
        bool,
        typer.Option("--radix-cache", help="Leave the prefix cache on in both servers."),
    ] = False,
    side_by_side: Annotated[
        bool,
        typer.Option(
            "--side-by-side",
            help="Start each server once; alternate between them, the other one stopped.",
        ),
    ] = False,
    server_flags: Annotated[str, typer.Option(help="Further flags of both servers.")] = "",
    flags: Annotated[str, typer.Option(help="Further flags of the extension's server.")] = "",
    against: Annotated[
        str | None,
        typer.Option(help="Flags of a second extension server that takes the place of stock."),
    ] = None,
    against_wheel: Annotated[
        Path | None,
        typer.Option(help="Wheel of another release, whose server takes the place of stock."),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the files that are written.")] = "local",
    results: Annotated[
        Path | None, typer.Option(help="Folder for the record and the plot; else bench/results.")
    ] = None,
    logs: Annotated[
        Path | None, typer.Option(help="Folder for the servers' logs; else they are not kept.")
    ] = None,
) -> None:
    """Measure stock SGLang and the extension in turn on this machine, the ratio first."""
    console, context = begin("bench")
    if against_wheel is not None and against is None:
        against = flags
    with no_figures_on_error(console), tempfile.TemporaryDirectory(prefix="bench-") as other:
        plan = Plan(
            shapes=tuple(Shape.parse(each) for each in shape or SHAPES),
            loads=tuple(parse_load(each) for each in load or (QUICK_LOADS if quick else LOADS)),
            seconds=seconds or (QUICK_SECONDS if quick else SECONDS),
            alternations=alternations,
            dtype=dtype,
            text=text,
            extension_args=() if self_check else (*EXTENSION_ARGS, *shlex.split(flags)),
            stock_args=() if against is None else (*EXTENSION_ARGS, *shlex.split(against)),
            args_of_both=tuple(shlex.split(server_flags)),
            stock_env={} if against_wheel is None else env_of_wheel(against_wheel, Path(other)),
            radix_cache=radix_cache,
            side_by_side=side_by_side,
        )
        presets = preset or (PRESETS[:1] if quick else PRESETS)
        runs = measure([] if model else presets, model or [], plan, logs, console)
    show(runs, console)
    save(runs, plan, (results or RESULTS) / name, context, console)


def measure(
    presets: list[str], models: list[Path], plan: Plan, logs: Path | None, console: Console
) -> list[ModelRun]:
    """Run the plan on models that are made in a temporary directory, and on those that are there.

    Args:
        logs: folder for the servers' logs; None: the temporary directory.
    """
    runs = []
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, console.status("") as status:
        made = [Path(directory) / preset for preset in presets]
        for model in (*made, *models):
            if model in made:
                status.update(f"{model.name}: making the model")
                make_model(model.name, model)
            run = ModelRun(model.name, model, plan, status.update, logs or Path(directory))
            run.run()
            runs.append(run)
    return runs


def show(runs: list[ModelRun], console: Console) -> None:
    """Print the tables, ratio first, and what the gate saw."""
    comparisons = compare_paths([result for run in runs for result in run.results])
    console.print(closed_table(comparisons), open_table(comparisons))
    for run in runs:
        show_gate(console, run.gate)
    if comparisons and comparisons[0].repeats == 1:
        console.print("One start of each server, so no range: the order may favour either.")


def save(
    runs: list[ModelRun], plan: Plan, path: Path, context: dict[str, Any], console: Console
) -> None:
    """Append the records to a file of that name, and draw the plot."""
    for run in runs:
        append(
            Path(f"{path}.jsonl"),
            run.results,
            {"dtype": plan.dtype, "text": plan.text, "gate": run.gate.as_dict(), **context},
        )
    title = title_of(context)
    comparisons = compare_paths([result for run in runs for result in run.results])
    save_plot(Path(f"{path}.png"), comparisons, title)
    console.print(f"written: {path}.jsonl, .png")


if __name__ == "__main__":
    typer.run(main)
