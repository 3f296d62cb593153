"""Measure prefill-only requests other than scoring: ``python -m bench.decisions KIND``."""

from __future__ import annotations

import shlex
from functools import partial
from typing import Annotated

import typer

from bench.command import Bench
from bench.cores import SINGLE_THREADED
from bench.decisions.kinds import KINDS, KindName, case_of, compare_numbers
from bench.options import Alternations, Clients, Dtype, Model, Preset, Results, Seconds, ServerFlags
from bench.score.plan import QUIET_ARGS, Plan
from bench.score.plot import save_plot
from bench.score.report import closed_table, compare_paths
from bench.score.session import ModelRun
from bench.workloads import ClosedLoop
from sglang_prefill_ext.sizing.model import ModelShape


def main(
    kind: Annotated[KindName, typer.Argument(help="What every request asks for.")],
    preset: Preset = "micro",
    model: Model = None,
    dtype: Dtype = "float32",
    clients: Clients = None,
    seconds: Seconds = 6.0,
    alternations: Alternations = 2,
    side_by_side: Annotated[
        bool,
        typer.Option("--side-by-side", help="Start each server once, and load them in turn."),
    ] = False,
    by_wrk: Annotated[bool, typer.Option("--by-wrk", help="Make the load by wrk.")] = False,
    server_flags: ServerFlags = "",
    results: Results = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the files in bench/results; default: the kind.")
    ] = None,
) -> None:
    """Measure requests per second, stock and extension in turn; print the ratio first."""
    bench = Bench("bench.decisions", name or str(kind), results)
    plan = Plan(
        loads=tuple(map(ClosedLoop, clients or [1, 8, 32])),
        seconds=seconds,
        alternations=alternations,
        extension_args=("--enable-prefill-only",),
        dtype=dtype,
        args_of_both=(*KINDS[kind].flags, *QUIET_ARGS, *shlex.split(server_flags)),
        env_of_both=SINGLE_THREADED,
        side_by_side=side_by_side,
        by_wrk=by_wrk,
    )
    with bench.measured_model(preset, model) as (directory, status):
        run = ModelRun(directory, plan, status.update, directory.parent)
        run.gate.compare = partial(compare_numbers, KINDS[kind])
        vocabulary = ModelShape.from_directory(directory).vocabulary
        run.run([case_of(KINDS[kind], vocabulary)])
    comparisons = compare_paths(run.results)
    bench.report(run.gate, run.results, closed_table(comparisons), dtype=dtype)
    save_plot(bench.picture, comparisons, bench.title)
    bench.say_written()


if __name__ == "__main__":
    typer.run(main)
