"""Let an outside tool query stock and the extension: ``python -m bench.judges JUDGE``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from bench.command import Bench
from bench.judges.lm_eval import LmEvalJudge
from bench.judges.openai_client import OpenAIJudge
from bench.judges.opinion import Opinion, Verdict, compare
from bench.judges.rerank import RerankJudge
from bench.judges.tools import Tools
from bench.score.plan import EXTENSION, NO_CACHE, PATHS, QUIET_ARGS
from bench.server import MeasuredServer
from bench.status import requests_by_path

_TOOLS = Path(__file__).parents[2] / ".judges"


class JudgeName(StrEnum):
    LM_EVAL = "lm-eval"
    RERANK = "rerank"
    OPENAI = "openai"


Judge: TypeAlias = LmEvalJudge | OpenAIJudge | RerankJudge


def main(
    name: Annotated[JudgeName, typer.Argument(help="Tool that judges.")],
    tools: Annotated[Path, typer.Option(help="Environment of lm-eval and ir-measures.")] = _TOOLS,
) -> None:
    """Send the same requests to stock and the extension; exit status 1 if the answers differ."""
    bench = Bench("bench.judges", "judges")
    with bench.no_figures_on_error():
        judge = _judge(name, Tools(tools))
    with bench.measured_model(judge.preset) as (model, status):
        verdict = judge_both(judge, model, status.update)
    bench.record([verdict], faults=verdict.faults())
    marks = ", ".join(f"{mark} {value:.4f}" for mark, value in verdict.extension.items())
    bench.console.print(
        f"{verdict.judge}: {verdict.requests} requests, {verdict.numbers} numbers, largest "
        f"difference {verdict.largest_difference:.1e} (tolerance {verdict.tolerance:g}); {marks}; "
        f"the extension counted {dict(verdict.counted)}"
    )
    if verdict.faults():
        bench.console.print(f"[red]Not the same:[/] {'; '.join(verdict.faults())}")
        raise typer.Exit(1)
    bench.console.print("Nothing tells the extension from stock.")


def judge_both(judge: Judge, model: Path, tell: Callable[[str], None]) -> Verdict:
    """Start stock, then the extension, and compare the judge's opinions of them.

    Raises:
        ServerStartError: a server did not start.
        JudgeError: the tool failed.
    """
    opinions: dict[str, Opinion] = {}
    counted: Counter[str] = Counter()  # of the last server, which is the extension
    for path in PATHS:
        tell(f"{judge.name}: {path}")
        own = ["--enable-prefill-only"] if path == EXTENSION else []
        flags = [NO_CACHE, *QUIET_ARGS, *judge.flags, *own]
        log = model.parent / f"{path}.log"
        with MeasuredServer(model, flags, log_path=log) as server:
            before = requests_by_path(server.port)
            opinions[path] = judge.ask(server.base_url, model, model.parent / path)
            counted = requests_by_path(server.port) - before
    stock, extension = (opinions[path] for path in PATHS)
    return compare(judge.name, stock, extension, dict(counted), judge.tolerance)


def _judge(name: JudgeName, tools: Tools) -> Judge:
    if name is JudgeName.OPENAI:
        return OpenAIJudge()
    return LmEvalJudge(tools) if name is JudgeName.LM_EVAL else RerankJudge(tools)


if __name__ == "__main__":
    typer.run(main)
