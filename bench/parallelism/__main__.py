"""Compare two replicas with two tensor-parallel ranks, one core each:
``python -m bench.parallelism``."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import asdict

import typer

from bench.command import Bench
from bench.fleet.engines import engine, engines_on, router
from bench.fleet.turns import Turns, cases_of, compare_turns
from bench.options import CLIENTS, SHAPES, Clients, Name, Preset, Seconds, Shapes, TurnCount
from bench.parallelism.link import measure_link
from bench.parallelism.prediction import predict, serving_of, verdicts
from bench.parallelism.report import save_plot, table_of
from bench.status import extension_page
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
    name: Name = "parallelism",
) -> None:
    """Measure one engine, two engines behind a router, and one engine with two ranks; compare with
    the predictions."""
    bench = Bench("bench.parallelism", name)
    cores = sorted(usable_cores())[:2]
    if len(cores) < 2:
        sys.exit("Two cores are needed.")
    with bench.measured_model(preset) as (model, status), ExitStack() as stack:
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
        scheduler = extension_page(ports[0])["schedulers"][0]
        serving = serving_of(ModelShape.from_directory(model), scheduler, link)
    compared = compare_turns(run.results, str(ONE))
    bench.console.print(*compared, sep="\n")
    found = predict(serving, compared, {str(each): each for each in (ONE, REPLICAS, RANKS)})
    bench.console.print(table_of(found))
    with_ranks = compare_turns(run.results, str(RANKS))
    bench.console.print(*verdicts(found, with_ranks, str(REPLICAS), str(RANKS)), sep="\n")
    bench.show_gate(run.gate)
    facts = {"gate": run.gate.as_dict(), "link": asdict(link), "device": asdict(serving.device)}
    bench.record(run.results, **facts)
    bench.record(found, "-predicted", **facts)
    save_plot(bench.picture, found, bench.title)
    bench.say_written()


if __name__ == "__main__":
    typer.run(main)
