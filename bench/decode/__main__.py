"""Generation beside packed load on real servers: ``python -m bench.decode``."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Annotated

import typer

from bench.__main__ import RESULTS
from bench.command import begin, measured_model, no_figures_on_error, show_gate, title_of
from bench.decode.plan import DecodePlan
from bench.decode.report import findings, findings_table, phase_table, save_decode_plot
from bench.decode.session import DecodeRun
from bench.record import append
from bench.workloads import Shape
from sglang_prefill_ext.config import PrefillOnlyConfig

DECODE_SLOWDOWN = PrefillOnlyConfig().decode_slowdown


def main(
    preset: Annotated[str, typer.Option(help="Model of `make-model`.")] = "tiny",
    clients: Annotated[int, typer.Option(min=1, help="That generate.")] = 4,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Of each generation.")] = 128,
    new_tokens: Annotated[int, typer.Option(min=2, help="Of each generation.")] = 32,
    shape: Annotated[str, typer.Option(help="Of scoring: <query>+<item>x<items>.")] = "60+2x50",
    share: Annotated[
        float, typer.Option(min=0.01, help="Open loop: of what stock scores alone.")
    ] = 0.5,
    score_clients: Annotated[int, typer.Option(min=1, help="Of the closed loops.")] = 4,
    seconds: Annotated[float, typer.Option(help="Per phase.")] = 20.0,
    alternations: Annotated[
        int, typer.Option(min=1, help="Starts of each server, in turn: A B A B.")
    ] = 2,
    decode_slowdown: Annotated[
        int, typer.Option(min=1, help="Flag of the extension, and the aim for gaps.")
    ] = DECODE_SLOWDOWN,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    flags: Annotated[str, typer.Option(help="Further flags of the extension's server.")] = "",
    seed: Annotated[int, typer.Option()] = 0,
    name: Annotated[str, typer.Option(help="File name in bench/results.")] = "decode",
) -> None:
    """Measure what packed load costs running generations, stock and extension in turn."""
    console, context = begin("bench.decode")
    with no_figures_on_error(console):
        plan = DecodePlan(
            shape=Shape.parse(shape),
            clients=clients,
            prompt_tokens=prompt_tokens,
            new_tokens=new_tokens,
            share=share,
            score_clients=score_clients,
            seconds=seconds,
            alternations=alternations,
            decode_slowdown=decode_slowdown,
            dtype=dtype,
            extension_args=tuple(shlex.split(flags)),
            seed=seed,
        )
    with measured_model(console, preset) as (model, status):
        run = DecodeRun(preset, model, plan, status.update)
        run.run()
    console.print(findings_table(findings(run.results, decode_slowdown)))
    console.print(phase_table(run.results))
    show_gate(console, run.gate)
    console.print(f"gate green: {run.equal_generations} generations equal", highlight=False)
    gate = run.gate.as_dict() | {"equal_generations": {"count": run.equal_generations}}
    append(RESULTS / f"{name}.jsonl", run.results, {"plan": asdict(plan), "gate": gate, **context})
    title = title_of(context)
    save_decode_plot(RESULTS / f"{name}.png", run.results, title)
    console.print(f"written: {RESULTS / name}.jsonl, .png")


if __name__ == "__main__":
    typer.run(main)
