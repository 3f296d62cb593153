"""Run the commands of benchmarks, and read what they write and print."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner

from bench.command import FILE_WIDTH


def printed(table: Table) -> str:
    """A table as it is printed to a file."""
    console = Console(width=FILE_WIDTH, file=StringIO(), record=True)
    console.print(table)
    return console.export_text()


class Commands(NamedTuple):
    """The commands; their results are written to a folder, which they make."""

    results: Path

    def run(self, main: Callable[..., None], *options: str, status: int = 0) -> str:
        """Run a command and return what it prints."""
        app = typer.Typer()
        app.command()(main)
        ran = CliRunner().invoke(app, options)
        assert ran.exit_code == status, ran.output
        return ran.output

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The lines of a record, beside which there is a picture."""
        assert (self.results / f"{name}.png").read_bytes().startswith(b"\x89PNG\r\n")
        return self.record(name)

    def record(self, name: str) -> list[dict[str, Any]]:
        """The lines of a record."""
        text = (self.results / f"{name}.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]
