"""Compare policies that choose blocks of rows for experts, by prediction over synthetic and
recorded routing: ``python -m bench.moe``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table

from bench.command import Bench
from bench.drawing import new_table
from bench.moe.replay import WAYS, Outcome, decision_us, replay
from bench.moe.routing import drawn, recorded
from bench.moe.shapes import ROW_TIMES, SHAPES
from bench.options import Name, Seed

TOKENS = [64, 128, 256, 512, 1024, 2304, 4096, 8192, 16384]


def main(
    tokens: Annotated[
        list[int] | None, typer.Option(min=64, help="Tokens of a forward; repeatable.")
    ] = None,
    forwards: Annotated[int, typer.Option(min=2, help="Forwards of each length.")] = 12,
    seed: Seed = 0,
    name: Name = "moe",
) -> None:
    """Compare policies by padded rows and predicted time; no model runs."""
    bench = Bench("bench.moe", name, simulated=True)
    outcomes: list[Outcome] = []
    for shape in SHAPES:
        for kind in ("uniform", "zipf"):
            for length in tokens or TOKENS:
                given = drawn(kind, shape.experts, shape.top_k, length, forwards, seed)
                outcomes += replay(shape, kind, [*given])
        if kept := recorded(shape.experts, shape.top_k):
            outcomes += replay(shape, "recorded", kept)
    choosing_us = round(decision_us(), 2)
    for shape in SHAPES:
        bench.console.print(table_of([each for each in outcomes if each.shape == shape.name]))
    for policy in WAYS:
        regrets = [each.regret for each in outcomes if each.policy == policy]
        bench.console.print(
            f"{policy}: {sum(regrets) / len(regrets):.2%} above the best block on average, "
            f"{max(regrets):.1%} at most"
        )
    choosing = f"{choosing_us} us a layer (128 experts, 48 layers)"
    bench.console.print(f"choosing takes the host {choosing}")
    bench.record(outcomes, row_times=ROW_TIMES, forwards=forwards, decision_us=choosing_us)
    bench.say_written()


def table_of(outcomes: Sequence[Outcome]) -> Table:
    """Return a table for one model: one line for each routing and length."""
    figures = (f"{what}, {policy}" for what in ("padded/real", "regret") for policy in WAYS)
    columns = ("routing", "tokens", *figures, "Tflop, auto (stock)")
    table = new_table(outcomes[0].shape, *columns)
    found = {(each.routing, each.tokens, each.policy): each for each in outcomes}
    for routing, tokens in dict.fromkeys((each.routing, each.tokens) for each in outcomes):
        own = [found[routing, tokens, policy] for policy in WAYS]
        stock, *_, auto, _ = own
        table.add_row(
            routing,
            f"{tokens:,}",
            *(f"{each.padded:.2f}" for each in own),
            *(f"{each.regret:.1%}" for each in own),
            f"{auto.operations / 1e12:.2f} ({stock.operations / 1e12:.2f})",
        )
    return table


if __name__ == "__main__":
    typer.run(main)
