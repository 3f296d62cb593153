"""Options of the commands that measure fleets in turns."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

SHAPES = ["120+180x10", "50+150x50", "60+2x50"]
CLIENTS = [1, 8]

Preset: TypeAlias = Annotated[str, typer.Option(help="Model of `make-model`.")]
Shapes: TypeAlias = Annotated[
    list[str] | None, typer.Option("--shape", help="<query>+<item>x<items>; repeatable.")
]
Clients: TypeAlias = Annotated[list[int] | None, typer.Option(min=1, help="Repeatable.")]
Seconds: TypeAlias = Annotated[float, typer.Option(help="Least seconds of a turn.")]
TurnCount: TypeAlias = Annotated[int, typer.Option(min=1, help="Of each subject and load.")]
