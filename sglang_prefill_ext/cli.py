"""The `sglang-prefill` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from sglang_prefill_ext.client.commands import COMMANDS
from sglang_prefill_ext.errors import ConfigError, PrefillExtError, RequestError
from sglang_prefill_ext.grpc_frontend.command import serve_grpc

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Prefill-only serving for stock SGLang.",
)
for client_command in COMMANDS:
    app.command()(client_command)
app.command("serve-grpc")(serve_grpc)


@app.command()
def doctor(
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON instead of a table.")
    ] = False,
) -> None:
    """Check every change to SGLang against the installed release; exit 1 on a mismatch."""
    from sglang_prefill_ext.patching import doctor as patch_doctor

    raise typer.Exit(patch_doctor.main(json_output))


@app.command("make-model")
def make_model_command(
    preset: Annotated[str, typer.Argument(help="Name of a preset, e.g. micro or ranker.")],
    directory: Annotated[Path, typer.Argument(help="Directory to write; made if missing.")],
    seed: Annotated[int, typer.Option(help="Seed of weights and tokenizer.")] = 0,
    force: Annotated[bool, typer.Option(help="Rebuild a model that is there already.")] = False,
) -> None:
    """Make a small model offline, in Hugging Face format."""
    from sglang_prefill_ext.modelmaker import make_model

    console = Console()
    with console.status(f"Making {preset} ...") as status:
        path = make_model(preset, directory, seed=seed, force=force, progress=status.update)
    console.print(f"[green]{preset}[/] is in {path}")


@app.command()
def explain(
    request: Annotated[typer.FileText, typer.Argument(help="A /v1/score body, or - for stdin.")],
    url: Annotated[str, typer.Option(help="Where the server is.")] = "http://127.0.0.1:30000",
) -> None:
    """Run a scoring request on a server and show how it was served."""
    facts = ask_for_explanation(url, request.read())
    table = Table(show_header=False, box=box.SIMPLE)
    for name, value in facts.items():
        if value is not None:
            shown = f"{value:,.1f}" if isinstance(value, float) else str(value)
            table.add_row(name.replace("_", " "), shown)
    Console().print(table)


def ask_for_explanation(url: str, body: str) -> dict[str, Any]:
    """Send a /v1/score body; return how it was served, by name.

    Raises:
        ConfigError: no server with the extension enabled answers at `url`.
        RequestError: the server refused or failed; the message is the server's.
    """
    typed = {"content-type": "application/json"}
    try:
        reply = httpx.post(f"{url}/prefill_only/explain", content=body, headers=typed, timeout=600)
    except httpx.HTTPError as error:
        raise ConfigError(
            f"--url {url} does not answer ({error}). Start a server there."
        ) from error
    if reply.status_code == 404:
        raise ConfigError(f"--url {url} runs without --enable-prefill-only; add that flag there.")
    if reply.status_code != 200:
        raise RequestError(f"HTTP {reply.status_code}: {reply.json().get('message', reply.text)}")
    facts: dict[str, Any] = reply.json()
    return facts


@app.command()
def demo(
    directory: Annotated[
        Path, typer.Option(help="Where the model, the server's log and the plot go.")
    ] = Path(".cache/demo"),
    items: Annotated[int, typer.Option(min=2, help="Catalogue items to rank.")] = 50,
) -> None:
    """Rank real text on a real server: the packed path beside the stock path."""
    from sglang_prefill_ext.demo.run import run_demo

    run_demo(directory, items, Console())


def main() -> None:
    """Run the command; an error of ours ends it with its message, not with a traceback."""
    try:
        app()
    except PrefillExtError as error:
        Console(stderr=True).print(f"[red]error:[/] {error}", highlight=False)
        raise SystemExit(1) from error
