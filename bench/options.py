"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

SHAPES = ["120+180x10", "50+150x50", "60+2x50"]
CLIENTS = [1, 8]
"""Of fleets that are measured in turns, unless others are asked for."""

_SHAPE = "<query>+<item>x<items>, in tokens"

Preset: TypeAlias = Annotated[str, typer.Option(help="Model of `make-model`.")]
ShapeText: TypeAlias = Annotated[str, typer.Option("--shape", help=f"{_SHAPE}.")]
Shapes: TypeAlias = Annotated[
    list[str] | None, typer.Option("--shape", help=f"{_SHAPE}; repeatable.")
]
Loads: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--load", help="Clients (8), rate (12.5/s) or share of stock (70%); repeatable."),
]
Clients: TypeAlias = Annotated[list[int] | None, typer.Option(min=1, help="Repeatable.")]
Seconds: TypeAlias = Annotated[float, typer.Option(help="Least seconds of a measurement.")]
Alternations: TypeAlias = Annotated[
    int, typer.Option(min=1, help="Starts of each server, or turns: A B A B.")
]
TurnCount: TypeAlias = Annotated[int, typer.Option(min=1, help="Of each subject and load.")]
Dtype: TypeAlias = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]
Flags: TypeAlias = Annotated[str, typer.Option(help="Further flags of the extension's servers.")]
Seed: TypeAlias = Annotated[int, typer.Option()]
Name: TypeAlias = Annotated[str, typer.Option(help="Name of the files in bench/results.")]
