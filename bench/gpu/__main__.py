"""Measure one model on a GPU, each server started once: ``python -m bench.gpu``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer

from bench.command import Bench
from bench.decisions.kinds import KINDS, POOL_DECISIONS, KindName, case_of, compare_numbers
from bench.gpu.profile import Profile, profiled, show
from bench.options import (
    Alternations,
    Clients,
    Dtype,
    Flags,
    Model,
    Name,
    Preset,
    RadixCache,
    Results,
    Seconds,
    ServerFlags,
    Shapes,
)
from bench.score.plan import Case, Plan, make_cases
from bench.score.plot import save_plot
from bench.score.report import closed_table, compare_paths
from bench.score.session import ModelRun, Servers
from bench.workloads import ClosedLoop, Shape
from sglang_prefill_ext.sizing.model import ModelShape

SHAPES = ["62+0x1", "299+1x1", "60+2x50", "120+180x10", "50+150x50"]
CLIENTS = [1, 16, 64]
TOKEN_CLIENTS = [1, 4, 16, 64, 96]
TOKEN = KindName("token")
PROFILED: dict[str, Sequence[int]] = {"60+2x50": (1, 16), "120+180x10": (1,), "50+150x50": (4,)}
"""Shape -> clients of the loads of which a profile is taken, unless shapes are asked for."""
SHARES = ("--mem-fraction-static=0.4",)
"""Two servers share the device."""


def main(
    preset: Preset = "qwen3-0.6b",
    model: Model = None,
    shapes: Shapes = None,
    clients: Clients = None,
    token_clients: Annotated[
        list[int] | None, typer.Option(min=1, help="As --clients, of one greedy token.")
    ] = None,
    token: Annotated[KindName, typer.Option(help="Kind of `bench.decisions`.")] = TOKEN,
    seconds: Seconds = 1.0,
    alternations: Alternations = 2,
    dtype: Dtype = "bfloat16",
    radix_cache: RadixCache = False,
    profile: Annotated[bool, typer.Option(help="Profile both servers at the end.")] = True,
    server_flags: ServerFlags = "",
    flags: Flags = "",
    name: Name = "gpu",
    results: Results = None,
) -> None:
    """Measure stock and extension in turn, while the other one is paused; print the ratio first."""
    bench = Bench("bench.gpu", name, results)
    with bench.measured_model(preset, model) as (directory, status):
        vocabulary = ModelShape.from_directory(directory).vocabulary

        def run_of(clients: list[int]) -> ModelRun:
            plan = Plan(
                loads=tuple(map(ClosedLoop, clients)),
                seconds=seconds,
                alternations=alternations,
                extension_args=("--enable-prefill-only", *shlex.split(flags)),
                dtype=dtype,
                radix_cache=radix_cache,
                args_of_both=(*SHARES, "--log-level-http=warning", *shlex.split(server_flags)),
            )
            logs = results or directory.parent
            return ModelRun(directory, plan, status.update, logs)

        scores, tokens = run_of(clients or CLIENTS), run_of(token_clients or TOKEN_CLIENTS)
        tokens.gate.compare = partial(compare_numbers, KINDS[token])
        drawn, count = map(Shape.parse, shapes or SHAPES), scores.plan.pool_requests()
        cases = make_cases(directory, drawn, count=count)
        token_case = case_of(KINDS[token], vocabulary, tokens.plan.pool_requests(POOL_DECISIONS))
        with scores.started() as servers:
            for run, own in ((scores, cases), (tokens, [token_case])):
                run.measure(servers, own)
                bench.report(
                    run.gate, run.results, closed_table(compare_paths(run.results)), dtype=dtype
                )
            if profile:
                asked = dict.fromkeys(shapes, clients or CLIENTS) if shapes else PROFILED
                loads = [
                    (case, count)
                    for case in make_cases(directory, map(Shape.parse, asked))
                    for count in asked[str(case.shape)]
                ]
                found = profiles(servers, loads)
                show(found, bench.console)
                bench.record(found, "-profile", dtype=dtype)
    save_plot(bench.picture, compare_paths([*scores.results, *tokens.results]), bench.title)
    bench.say_written()


def profiles(servers: Servers, loads: Sequence[tuple[Case, int]]) -> list[Profile]:
    """Profile each server under each load, a case and its clients, while the other is paused."""
    found = []
    for path, server, other in servers.turns:
        with other.paused():
            found += [profiled(path, server.port, clients, case) for case, clients in loads]
    return found


if __name__ == "__main__":
    typer.run(main)
