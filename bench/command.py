"""What the commands for live servers share: how they begin, and how they end early."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.status import Status

from bench.record import run_context
from bench.score_gate import ScoreGate
from sglang_prefill_ext.errors import PrefillExtError
from sglang_prefill_ext.modelmaker import make_model

FILE_WIDTH = 120  # columns where the output is no terminal
BUSY_LOAD = 0.5  # runnable processes before the run starts


def begin(module: str) -> tuple[Console, dict[str, Any]]:
    """Return where to print and the record's context; say so where the machine is busy."""
    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH)
    context = run_context(module)
    if context["machine"]["load_average"] > BUSY_LOAD:
        console.print("[yellow]The machine is busy; figures mislead there.[/]")
    return console, context


def show_gate(console: Console, gate: ScoreGate) -> None:
    """Print what the gate has seen."""
    for what, agreement in gate.agreement.items():
        console.print(f"gate green: {what}: {agreement}", highlight=False)


def title_of(context: dict[str, Any]) -> str:
    """Return the title of a run's plot."""
    return f"{context['machine']['cpu']}, commit {context['commit']}"


@contextmanager
def no_figures_on_error(console: Console) -> Iterator[None]:
    """End the command with a message and status 1 where the body fails or the gate is red."""
    try:
        with terminable():
            yield
    except PrefillExtError as error:
        console.print(f"[red]No figures:[/] {error}", highlight=False)
        raise typer.Exit(1) from error


@contextmanager
def measured_model(console: Console, preset: str) -> Iterator[tuple[Path, Status]]:
    """Make a model for as long as the body measures it; ends as `no_figures_on_error` does.

    Yields:
        Its directory, named after the preset, and a line that says what happens.
    """
    with (
        no_figures_on_error(console),
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        console.status("") as status,
    ):
        model = Path(directory) / preset
        make_model(preset, model)
        yield model, status


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM unwind as SIGINT does: the server has a process group of its own and would
    outlive this process. Exits with the status that a shell gives a terminated process."""

    def leave(number: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the server is being stopped already
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
