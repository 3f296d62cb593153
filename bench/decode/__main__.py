"""Measure generations beside packed load on real servers: ``python -m bench.decode``."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Annotated

import typer

from bench.command import Bench
from bench.decode.plan import DecodePlan
from bench.decode.report import findings, findings_table, phase_table
from bench.decode.session import DecodeRun
from bench.options import Alternations, Dtype, Flags, Name, Preset, Seconds
from sglang_prefill_ext.config import PrefillOnlyConfig

DECODE_SLOWDOWN = PrefillOnlyConfig().decode_slowdown


def main(
    preset: Preset = "tiny",
    seconds: Seconds = 20.0,
    alternations: Alternations = 2,
    decode_slowdown: Annotated[
        int,
        typer.Option(min=1, help="--prefill-only-decode-slowdown, and upper limit of gap ratios."),
    ] = DECODE_SLOWDOWN,
    dtype: Dtype = "float32",
    flags: Flags = "",
    name: Name = "decode",
) -> None:
    """Measure how packed load slows generations down, on stock and extension in turn."""
    bench = Bench("bench.decode", name)
    plan = DecodePlan(
        seconds=seconds,
        alternations=alternations,
        decode_slowdown=decode_slowdown,
        dtype=dtype,
        extension_args=tuple(shlex.split(flags)),
    )
    with bench.measured_model(preset) as (model, status):
        run = DecodeRun(model, plan, status.update)
        run.run()
    ratios = findings_table(findings(run.results, decode_slowdown))
    bench.console.print(ratios, phase_table(run.results), sep="\n")
    bench.show_gate(run.gate)
    bench.console.print(f"gate green: {run.equal_generations} generations equal")
    gate = run.gate.as_dict() | {"equal_generations": {"count": run.equal_generations}}
    bench.record(run.results, plan=asdict(plan), gate=gate)
    bench.say_written()


if __name__ == "__main__":
    typer.run(main)
