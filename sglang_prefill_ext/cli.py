"""The `sglang-prefill` command."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sglang_prefill_ext import __version__
from sglang_prefill_ext.client import explanation
from sglang_prefill_ext.client.commands import COMMANDS, ApiKey, Url
from sglang_prefill_ext.client.comparison import compare
from sglang_prefill_ext.client.exchange import DEFAULT_URL
from sglang_prefill_ext.errors import PrefillExtError
from sglang_prefill_ext.fleet.command import fleet
from sglang_prefill_ext.grpc_frontend.command import serve_grpc
from sglang_prefill_ext.modelmaker.catalogue import NUM_ITEMS
from sglang_prefill_ext.modelmaker.presets import PRESETS
from sglang_prefill_ext.sizing.command import plan

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for client_command in (*COMMANDS, compare):
    app.command()(client_command)
app.command("serve-grpc")(serve_grpc)
app.command("fleet", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(
    fleet
)
app.command("plan")(plan)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"sglang-prefill-ext {__version__}")
        raise typer.Exit


@app.callback()
def common(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Prefill-only serving for stock SGLang."""


@app.command()
def doctor(
    everything: Annotated[
        bool, typer.Option("--all", help="List every change, not only those that do not fit.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Check that the installed SGLang fits; starts nothing, and exits with 1 if it does not."""
    from sglang_prefill_ext.patching import doctor as patch_doctor

    raise typer.Exit(patch_doctor.main(json_output=json_output, everything=everything))


@app.command("make-model")
def make_model_command(
    preset: Annotated[str, typer.Argument(help=f"One of {', '.join(PRESETS)}.")],
    directory: Annotated[
        Path, typer.Argument(help="Directory to write. It is created if missing.")
    ],
    seed: Annotated[int, typer.Option(help="Seed of weights and tokenizer.")] = 0,
    force: Annotated[bool, typer.Option(help="Replace a model that is already there.")] = False,
) -> None:
    """Write a small model in Hugging Face format, without a network."""
    from sglang_prefill_ext.modelmaker import make_model

    console = Console()
    with console.status(f"Making {preset} ...") as status:
        path = make_model(preset, directory, seed=seed, force=force, progress=status.update)
    console.print(f"[green]{preset}[/] is in {escape(str(path))}", soft_wrap=True)


@app.command()
def explain(
    request: Annotated[
        typer.FileBinaryRead, typer.Argument(help="File with a /v1/score body; - is stdin.")
    ],
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
) -> None:
    """Run a scoring request on a server, and show how it was served."""
    table = Table(show_header=False, box=box.SIMPLE)
    for name, value in explanation.explain(url, request.read(), api_key=api_key).items():
        for shown in _lines(value):
            table.add_row(name.replace("_", " "), shown)
    Console().print(table)


def _lines(value: Any) -> list[str]:
    """What stands beside a name: nothing of None, of a list a line for each of its objects."""
    match value:
        case None:
            return []
        case list():
            return [", ".join(f"{name} {one:.4g}" for name, one in each.items()) for each in value]
        case float():
            return [f"{value:,.1f}"]
        case _:
            return [str(value)]


@app.command()
def demo(
    directory: Annotated[
        Path, typer.Option(help="Directory for the model, the server's log and the plot.")
    ] = Path(".cache/demo"),
    items: Annotated[
        int, typer.Option(min=2, max=NUM_ITEMS, help="Number of catalogue items to rank.")
    ] = 50,
) -> None:
    """Rank text on a real server, and compare the packed path with the stock path."""
    from sglang_prefill_ext.demo.run import run_demo

    run_demo(directory, items, Console())


def main() -> None:
    """Run the command; what its user can cause ends it with a message, not with a traceback."""
    # What a shell has closed is as good as /dev/null.
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    try:
        app()
    except (PrefillExtError, OSError) as error:
        line = f"[red]error:[/] {escape(_told(error))}"
        Console(stderr=True).print(line, highlight=False, soft_wrap=True)
        raise SystemExit(1) from error


def _told(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.strerror}: {error.filename}"
    return str(error)
