"""A long steady load on a real server: ``python -m bench.soak``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from bench.command import Bench
from bench.drawing import new_table
from bench.options import Dtype, Flags, Name, Preset
from bench.soak.session import SoakPlan, SoakRun
from bench.soak.windows import LONG_PAUSE_MS, MOST_DRIFT, MOST_SLOWING, SoakWindow, Verdict


def main(
    preset: Preset = "micro",
    minutes: Annotated[float, typer.Option(min=0.1, help="Length of the load.")] = 20.0,
    load: Annotated[float, typer.Option(min=0.01, help="Share of the measured capacity.")] = 0.8,
    dtype: Dtype = "float32",
    flags: Flags = "",
    engines: Annotated[
        int,
        typer.Option(
            min=0, help="Engines behind a router, one core each; 0 for one server without a router."
        ),
    ] = 0,
    name: Name = "soak",
) -> None:
    """Check whether throughput, latency, memory and pauses stay the same under a long load."""
    bench = Bench("bench.soak", name)
    plan = SoakPlan(
        seconds=minutes * 60,
        load=load,
        dtype=dtype,
        extension_args=tuple(shlex.split(flags)),
        engines=engines,
    )
    with bench.measured_model(preset) as (model, status):
        run = SoakRun(model, plan, status.update)
        verdict = run.run()
    found = {"preset": preset, "rate_per_s": run.rate_per_s, "verdict": asdict(verdict)}
    found |= {"reports": run.reports, "plan": asdict(plan)}
    aims = f"aims: drifts within {MOST_DRIFT:.0%}, of P50 {MOST_SLOWING:.0%}, no long pause"
    bench.report(run.gate, run.results, soak_table(run.results, verdict), aims, **found)
    bench.say_written()
    raise typer.Exit(0 if verdict.passed else 1)


def soak_table(windows: Sequence[SoakWindow], verdict: Verdict) -> Table:
    """Return a table of the first and the last window, and the verdict; missed aims are red."""
    table = new_table("", "", "req/s", "P50, ms", "P99, ms", "memory, MiB", left=[""])
    for name, window in (("first", windows[0]), ("last", windows[-1])):
        memory = f"{sum(window.memory_mib.values()):,.0f}"
        rate = f"{window.requests_per_s:.1f}"
        table.add_row(name, rate, f"{window.p50_ms:.1f}", f"{window.p99_ms:.1f}", memory)
    slowing = _judged(f"{verdict.latency_drift:+.1%}", verdict.latency_drift <= MOST_SLOWING)
    drifts = _drift(verdict.throughput_drift), slowing, "", _drift(verdict.memory_drift)
    table.add_row("drift", *drifts)
    long = _judged(f"{verdict.long_pauses} over {LONG_PAUSE_MS} ms", not verdict.long_pauses)
    waits = f"{verdict.long_waits} by the wall clock"
    table.add_row(f"{verdict.pauses} pauses", long, waits, "", "")
    return table


def _drift(share: float) -> str:
    return _judged(f"{share:+.1%}", abs(share) <= MOST_DRIFT)


def _judged(text: str, good: bool) -> str:
    return f"[{'green' if good else 'red'}]{text}[/]"


if __name__ == "__main__":
    typer.run(main)
