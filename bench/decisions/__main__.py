"""Measure prefill-only requests other than scoring: ``python -m bench.decisions KIND``."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

from bench.command import Bench
from bench.cores import Awake, kept_awake
from bench.decisions.kinds import KINDS, case_of, compare_numbers
from bench.options import Alternations, Clients, Preset, Seconds, Seed
from bench.score.plan import QUIET_ARGS, SPIN_ARGS, Plan
from bench.score.plot import save_plot
from bench.score.report import closed_table, compare_paths
from bench.score.session import ModelRun
from bench.workloads import ClosedLoop
from sglang_prefill_ext.sizing.model import ModelShape

# Names that mypy cannot see, because they are not literals.
KindName = StrEnum("KindName", list(KINDS))  # type: ignore[misc]


def main(
    kind: Annotated[KindName, typer.Argument(help="What every request asks for.")],
    preset: Preset = "micro",
    clients: Clients = None,
    count: Annotated[int | None, typer.Option(min=1, help="Prompts per request.")] = None,
    shared: Annotated[
        int | None, typer.Option(min=0, help="Tokens that all prompts of a request share.")
    ] = None,
    shortest: Annotated[
        int | None, typer.Option(min=1, help="Least tokens of a prompt after the shared ones.")
    ] = None,
    longest: Annotated[
        int | None, typer.Option(min=1, help="Most tokens of a prompt after the shared ones.")
    ] = None,
    seconds: Seconds = 6.0,
    alternations: Alternations = 2,
    threads: Annotated[
        int, typer.Option(min=1, help="CPU threads of a forward, in both servers.")
    ] = 1,
    spin: Annotated[
        bool, typer.Option("--spin", help="Idle schedulers poll instead of sleeping.")
    ] = False,
    awake: Awake = False,
    apart: Annotated[
        bool, typer.Option("--apart", help="Only schedulers run on the first core.")
    ] = False,
    side_by_side: Annotated[
        bool,
        typer.Option("--side-by-side", help="Start each server once, and load them in turn."),
    ] = False,
    by_wrk: Annotated[bool, typer.Option("--by-wrk", help="Make the load by wrk.")] = False,
    seed: Seed = 0,
    name: Annotated[
        str | None, typer.Option(help="Name of the files in bench/results; default: the kind.")
    ] = None,
) -> None:
    """Measure requests per second, stock and extension in turn; print the ratio first."""
    bench = Bench("bench.decisions", name or str(kind))
    shape = {"items": count, "shared": shared, "shortest": shortest, "longest": longest}
    given = {key: value for key, value in shape.items() if value is not None}
    prompts = replace(KINDS[kind].prompts, **given)
    plan = Plan(
        loads=tuple(map(ClosedLoop, clients or [1, 8, 32])),
        seconds=seconds,
        alternations=alternations,
        extension_args=("--enable-prefill-only",),
        args_of_both=(*KINDS[kind].flags, *(SPIN_ARGS if spin else QUIET_ARGS)),
        env_of_both={"OMP_NUM_THREADS": str(threads)},
        side_by_side=side_by_side,
        apart=apart,
        by_wrk=by_wrk,
    )
    with bench.measured_model(preset) as (model, status), kept_awake(awake):
        run = ModelRun(preset, model, plan, status.update, model.parent)
        run.gate.compare = partial(compare_numbers, KINDS[kind])
        vocabulary = ModelShape.from_directory(model).vocabulary
        run.run([case_of(KINDS[kind], prompts, vocabulary, seed)])
    comparisons = compare_paths(run.results)
    bench.console.print(closed_table(comparisons))
    bench.show_gate(run.gate)
    bench.record(run.results, gate=run.gate.as_dict())
    save_plot(bench.picture, comparisons, bench.title)
    bench.say_written()


if __name__ == "__main__":
    typer.run(main)
