"""Two replicas with a core each against two ranks: ``python -m bench.parallelism``."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import asdict
from typing import Annotated

import typer

from bench.__main__ import RESULTS
from bench.command import begin, measured_model, show_gate, title_of
from bench.fleet.engines import engine, engines_on, router
from bench.fleet.options import CLIENTS, SHAPES, Clients, Preset, Seconds, Shapes, TurnCount
from bench.fleet.turns import Turns, cases_of, compare_turns
from bench.parallelism.link import measure_link
from bench.parallelism.prediction import predict, serving_of, verdicts
from bench.parallelism.report import save_plot, table_of
from bench.record import append
from bench.status import status_page
from sglang_prefill_ext.shared_device.placement import usable_cores
from sglang_prefill_ext.sizing.model import ModelShape
from sglang_prefill_ext.sizing.parallelism import Parallelism

ONE, REPLICAS, RANKS = Parallelism(1, 1), Parallelism(2, 1), Parallelism(1, 2)


def main(
    preset: Preset = "tiny",
    shapes: Shapes = None,
    clients: Clients = None,
    seconds: Seconds = 2.0,
    turns: TurnCount = 7,
    name: Annotated[str, typer.Option(help="File name in bench/results.")] = "parallelism",
) -> None:
    """Measure one engine, two behind a router, and one of two ranks, beside what is predicted."""
    console, context = begin("bench.parallelism")
    cores = sorted(usable_cores())[:2]
    if len(cores) < 2:
        sys.exit("Two cores are needed.")
    with measured_model(console, preset) as (model, status), ExitStack() as stack:
        status.update("measuring all-reduces")
        link = measure_link(cores)
        ports = stack.enter_context(engines_on(model, cores, status.update))
        status.update("starting an engine of two ranks")
        bound = {"SGLANG_CPU_OMP_THREADS_BIND": "|".join(map(str, cores))}
        ranks = stack.enter_context(engine(model, "ranks", "--tp-size", "2", env=bound))
        subjects = {
            str(ONE): ports[0],
            str(REPLICAS): stack.enter_context(router(ports)).port,
            str(RANKS): ranks.port,
        }
        run = Turns(preset, subjects, seconds, turns, status.update)
        run.run(cases_of(model, shapes or SHAPES), clients or CLIENTS)
        page = status_page(ports[0])
        assert page is not None, "an engine with the plugin has a status page"
        serving = serving_of(ModelShape.from_directory(model), page["schedulers"][0], link)
    compared = compare_turns(run.results, str(ONE))
    for each in compared:
        console.print(str(each), highlight=False)
    found = predict(serving, compared, {str(each): each for each in (ONE, REPLICAS, RANKS)})
    console.print(table_of(found))
    with_ranks = compare_turns(run.results, str(RANKS))
    for line in verdicts(found, with_ranks, str(REPLICAS), str(RANKS)):
        console.print(line, highlight=False)
    show_gate(console, run.gate)
    more = {"gate": run.gate.as_dict(), "link": asdict(link), "device": asdict(serving.device)}
    append(RESULTS / f"{name}.jsonl", run.results, more | context)
    append(RESULTS / f"{name}-predicted.jsonl", found, more | context)
    save_plot(RESULTS / f"{name}.png", found, title_of(context))
    console.print(f"written: {RESULTS / name}.jsonl, -predicted.jsonl, .png")


if __name__ == "__main__":
    typer.run(main)
