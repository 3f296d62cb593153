"""Requests that end with their prompts, beside scoring: ``python -m bench.decisions KIND``."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Annotated

import typer

from bench.__main__ import RESULTS
from bench.command import begin, measured_model
from bench.cores import Awake, kept_awake
from bench.decisions.kinds import KINDS
from bench.decisions.session import DecisionRun
from bench.floor import ModelShape
from bench.plot import save_plot
from bench.record import append
from bench.report import closed_table, compare_paths

KindName = StrEnum("KindName", list(KINDS))


def main(
    kind: Annotated[KindName, typer.Argument(help="What every request asks for.")],
    preset: Annotated[str, typer.Option(help="Model of `make-model`.")] = "micro",
    clients: Annotated[list[int] | None, typer.Option(min=1, help="Repeatable.")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Prompts a request.")] = None,
    shared: Annotated[int | None, typer.Option(min=0, help="Tokens they have in common.")] = None,
    shortest: Annotated[int | None, typer.Option(min=1, help="Least further tokens.")] = None,
    longest: Annotated[int | None, typer.Option(min=1, help="Most further tokens.")] = None,
    seconds: Annotated[float, typer.Option(help="Least seconds per measurement.")] = 6.0,
    alternations: Annotated[
        int, typer.Option(min=1, help="Starts of each server, or turns: A B A B.")
    ] = 2,
    threads: Annotated[int, typer.Option(min=1, help="Of a forward, in both servers.")] = 1,
    spin: Annotated[
        bool, typer.Option("--spin", help="Idle schedulers do not sleep, in both servers.")
    ] = False,
    awake: Awake = False,
    apart: Annotated[
        bool, typer.Option("--apart", help="Schedulers have the first core to themselves.")
    ] = False,
    side_by_side: Annotated[
        bool, typer.Option("--side-by-side", help="Both are started once, and loaded in turn.")
    ] = False,
    by_wrk: Annotated[bool, typer.Option("--by-wrk", help="wrk makes the load.")] = False,
    seed: Annotated[int, typer.Option()] = 0,
    name: Annotated[str | None, typer.Option(help="File name in bench/results.")] = None,
) -> None:
    """Measure requests a second, stock and extension in turn, the ratio first."""
    console, context = begin("bench.decisions")
    shape = {"count": count, "shared": shared, "shortest": shortest, "longest": longest}
    given = {key: value for key, value in shape.items() if value is not None}
    prompts = replace(KINDS[kind].prompts, **given)
    with measured_model(console, preset) as (model, status), kept_awake(awake):
        requests = prompts.draw(ModelShape.from_directory(model).vocabulary, seed)
        asked = (KINDS[kind], prompts, clients or [1, 8, 32])
        run = DecisionRun(model, *asked, seconds, threads, spin=spin, apart=apart, by_wrk=by_wrk)
        measure = run.side_by_side if side_by_side else run.in_turn
        measure(alternations, requests, lambda what: status.update(f"{kind} on {preset}: {what}"))
    comparisons = compare_paths(run.results)
    gate = run.gate
    console.print(closed_table(comparisons))
    console.print(f"gate green: {gate.compared} answers, largest difference {gate.largest:.1e}")
    file = RESULTS / (name or str(kind))
    append(file.with_suffix(".jsonl"), run.results, {"gate": gate.as_dict(), **context})
    title = f"{context['machine']['cpu']}, commit {context['commit']}"
    save_plot(file.with_suffix(".png"), comparisons, title)
    console.print(f"written: {file}.jsonl, .png")


if __name__ == "__main__":
    typer.run(main)
