"""What every command shares: console, files of results, and ending on an error or SIGTERM."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.status import Status

from bench.record import append, run_context
from bench.score.score_gate import ScoreGate
from sglang_prefill_ext.errors import PrefillExtError
from sglang_prefill_ext.modelmaker import make_model

RESULTS = Path(__file__).parent / "results"
FILE_WIDTH = 120  # columns if the output is not a terminal
SIMULATION_WIDTH = 190  # columns for the wide tables of simulations
BUSY_LOAD = 0.5  # load average above which a machine counts as busy before the run starts


class Bench:
    """One run of a command.

    Args:
        module: the module that was run, as in ``python -m bench``.
        name: name of the files that are written, without suffix.
        folder: folder of these files; None: `RESULTS`.
        simulated: nothing is timed, so a busy machine does not matter.

    Attributes:
        console: where to print.
        context: date, command, commit and machine; part of every record.
        title: title of the picture, if there is one.
        picture: its file.
    """

    def __init__(
        self, module: str, name: str = "", folder: Path | None = None, *, simulated: bool = False
    ) -> None:
        width = SIMULATION_WIDTH if simulated else None if sys.stdout.isatty() else FILE_WIDTH
        self.console = Console(width=width, highlight=False)
        self.context = run_context(module)
        self.title = f"{self.context['machine']['cpu']}, commit {self.context['commit']}"
        self._files = str((folder or RESULTS) / name)  # a name may have a dot
        self.picture = Path(f"{self._files}.png")
        if self.context["machine"]["load_average"] > BUSY_LOAD and not simulated:
            self.console.print("[yellow]The machine is busy; figures mislead there.[/]")

    def record(self, results: Iterable[Any], part: str = "", /, **facts: object) -> None:
        """Append one line per result to the record, each with the facts and the context.

        Args:
            part: added to the file's name if a command has several records.
        """
        append(Path(f"{self._files}{part}.jsonl"), results, facts | self.context)

    def say_written(self) -> None:
        """Print the names of the written files."""
        drawn = ", .png" if self.picture.exists() else ""
        self.console.print(f"written: {self._files}.jsonl{drawn}")

    def show_gate(self, gate: ScoreGate) -> None:
        """Print how far the answers that the gate compared differ."""
        for what, agreement in gate.agreement.items():
            self.console.print(f"gate green: {what}: {agreement}")

    def report(
        self, gate: ScoreGate, results: Iterable[Any], *shown: object, **facts: object
    ) -> None:
        """Print what was found, show the gate, and record the results with the facts."""
        self.console.print(*shown, sep="\n")
        self.show_gate(gate)
        self.record(results, gate=gate.as_dict(), **facts)

    @contextmanager
    def no_figures_on_error(self) -> Iterator[None]:
        """End the command with a message and status 1 if the body raises a `PrefillExtError`."""
        try:
            with terminable():
                yield
        except PrefillExtError as error:
            self.console.print(f"[red]No figures:[/] {error}")
            raise typer.Exit(1) from error

    @contextmanager
    def measured_model(
        self, preset: str, existing: Path | None = None
    ) -> Iterator[tuple[Path, Status]]:
        """Make a model in a temporary directory; handles errors as `no_figures_on_error` does.

        Args:
            existing: directory of a model to use instead of the preset.

        Yields:
            The model's directory, named after the preset, and a status line on the console.
        """
        with (
            self.no_figures_on_error(),
            tempfile.TemporaryDirectory(prefix="bench-") as directory,
            self.console.status("") as status,
        ):
            yield existing or make_model(preset, Path(directory) / preset), status


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM unwind the stack as SIGINT does, so that servers are stopped.

    A server has a process group of its own and would outlive this process. The exit status is the
    one that a shell gives a terminated process.
    """

    def leave(number: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the server is being stopped already
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
