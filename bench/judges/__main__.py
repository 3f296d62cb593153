"""Let an outside tool query stock and the extension: ``python -m bench.judges JUDGE``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bench.command import Bench
from bench.judges.lm_eval import LmEvalJudge
from bench.judges.openai_client import OpenAIJudge
from bench.judges.rerank import RerankJudge
from bench.judges.session import Judge, judge_both
from bench.judges.tools import Tools

_TOOLS = Path(__file__).parents[2] / ".judges"


class JudgeName(StrEnum):
    LM_EVAL = "lm-eval"
    RERANK = "rerank"
    OPENAI = "openai"


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


def _judge(name: JudgeName, tools: Tools) -> Judge:
    if name is JudgeName.OPENAI:
        return OpenAIJudge()
    return LmEvalJudge(tools) if name is JudgeName.LM_EVAL else RerankJudge(tools)


if __name__ == "__main__":
    typer.run(main)
