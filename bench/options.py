"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

SHAPES = ["120+180x10", "50+150x50", "60+2x50"]
CLIENTS = [1, 8]
"""Default numbers of clients in measurements of fleets in turns."""

_SHAPE = "<query>+<item>x<items>, in tokens"

Preset: TypeAlias = Annotated[str, typer.Option(help="Model of `make-model`.")]
Model: TypeAlias = Annotated[
    Path | None, typer.Option(help="Directory of a model to use instead of the preset.")
]
ShapeText: TypeAlias = Annotated[str, typer.Option("--shape", help=f"{_SHAPE}.")]
Shapes: TypeAlias = Annotated[
    list[str] | None, typer.Option("--shape", help=f"{_SHAPE}; repeatable.")
]
RadixCache: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--radix-cache",
        help="Leave the prefix cache on in both servers, and send only different requests.",
    ),
]
Loads: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--load", help="Clients (8), rate (12.5/s) or share of stock's rate (70%); repeatable."
    ),
]
Clients: TypeAlias = Annotated[
    list[int] | None, typer.Option(min=1, help="Clients of a closed loop; repeatable.")
]
Seconds: TypeAlias = Annotated[float, typer.Option(help="Least seconds per measurement.")]
Alternations: TypeAlias = Annotated[
    int, typer.Option(min=1, help="How often each server is started or measured, in turn.")
]
TurnCount: TypeAlias = Annotated[
    int, typer.Option(min=1, help="Measurements of each subject and load, in turn.")
]
Dtype: TypeAlias = Annotated[str, typer.Option(help="Of the model: float32, bfloat16 or float16.")]
Flags: TypeAlias = Annotated[str, typer.Option(help="Further flags of the extension's servers.")]
ServerFlags: TypeAlias = Annotated[str, typer.Option(help="Further flags of both servers.")]
Results: TypeAlias = Annotated[
    Path | None, typer.Option(help="Folder of record and plot; default: bench/results.")
]
Seed: TypeAlias = Annotated[int, typer.Option(help="Seed of all random draws.")]
Name: TypeAlias = Annotated[str, typer.Option(help="Name of the files in bench/results.")]
