"""Compare two replicas with two tensor-parallel ranks, one core each:
``python -m bench.parallelism``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import typer
from rich.table import Table

from bench.command import Bench
from bench.drawing import new_table, picture
from bench.fleet.engines import engine, engines_on, router
from bench.fleet.turns import Turns, cases_of, compare_turns
from bench.options import CLIENTS, SHAPES, Clients, Name, Preset, Seconds, Shapes, TurnCount
from bench.parallelism.link import measure_link
from bench.parallelism.prediction import Predicted, predict, serving_of, verdicts
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


def table_of(found: Sequence[Predicted]) -> Table:
    """Return a table with one line per subject and load."""
    numbers = ("predicted ms", "P50 ms", "least ms", "predicted", "measured")
    table = new_table("", "shape", "clients", "", *numbers, left=["shape"])
    for each in found:
        table.add_row(
            each.shape,
            str(each.clients),
            each.subject,
            f"{each.predicted_ms:.1f}",
            f"{each.measured_ms:.1f}",
            f"{each.least_ms:.1f}",
            f"{each.faster:.2f}x",
            f"{each.measured_faster:.2f}x",
        )
    return table


def save_plot(path: Path, found: Sequence[Predicted], title: str) -> None:
    """Write a PNG: measured against predicted latency, one color per subject."""
    with picture(path, title=title, figsize=(6, 5)) as panel:
        for subject in dict.fromkeys(each.subject for each in found):
            own = [each for each in found if each.subject == subject]
            panel.plot(
                [each.predicted_ms for each in own],
                [each.measured_ms for each in own],
                "o",
                label=subject,
            )
        latencies = [ms for each in found for ms in (each.predicted_ms, each.measured_ms)]
        ends = [min(latencies), max(latencies)]
        panel.plot(ends, ends, "--", color="black", linewidth=0.8)
        panel.set(xscale="log", yscale="log", xlabel="predicted ms", ylabel="measured P50, ms")
        panel.legend(fontsize=8)


if __name__ == "__main__":
    typer.run(main)
