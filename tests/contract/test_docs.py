"""Names and defaults in the pages are those of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import click
import pytest
import typer

from sglang_prefill_ext import errors
from sglang_prefill_ext.cli import app
from sglang_prefill_ext.client import Options
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.config.knobs import flag_name, shown_default
from sglang_prefill_ext.frontend import options as headers
from sglang_prefill_ext.grpc_frontend import prefill_pb2
from sglang_prefill_ext.modelmaker.presets import PRESETS
from sglang_prefill_ext.wire.status import BAD_ENDS
from sglang_prefill_ext.wire.stock_reason import StockReason

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "sglang_prefill_ext"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "patches" / "README.md"])
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
OWN_FLAGS = {"--enable-prefill-only", *(flag_name(knob.name) for knob in fields(PrefillOnlyConfig))}


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def section(name: str, title: str) -> str:
    """The text below a heading, up to the next heading of the same level."""
    return re.split(r"^## ", page(name).split(f"\n## {title}\n")[1], flags=re.MULTILINE)[0]


def first_cells(text: str) -> list[str]:
    """The first cell of every row of the tables, without header and separator rows."""
    rows = re.findall(r"^\| *(.*?) *\|", text, re.MULTILINE)
    cells = [cell for cell in rows if "`" in cell]
    assert cells
    return cells


def in_code(cells: list[str]) -> list[str]:
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def anchors(text: str) -> set[str]:
    """The anchors of headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links() -> Iterator[tuple[Path, str]]:
    for source in PAGES:
        text = re.sub(r"^```.*?^```", "", source.read_text(), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if "://" not in target:
                yield source, target


def test_links_lead_somewhere() -> None:
    found = list(links())
    assert found
    for source, target in found:
        path, _, anchor = target.partition("#")
        file = (source.parent / path).resolve() if path else source
        assert file.exists(), f"{source.name}: {target}"
        assert not anchor or anchor in anchors(file.read_text()), f"{source.name}: {target}"


def test_every_page_is_linked_from_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    missing = [each.name for each in ROOT.glob("docs/*.md") if f"(docs/{each.name}" not in text]
    assert not missing


def test_the_table_of_flags_has_every_flag_with_its_default() -> None:
    rows = re.findall(
        r"^\| `(--[\w-]+)(?: \w+)?` \| (\S+) \|", page("configuration.md"), re.MULTILINE
    )
    expected = {flag_name(knob.name): shown_default(knob) for knob in fields(PrefillOnlyConfig)}
    assert dict(rows) == {"--enable-prefill-only": "off"} | expected


@pytest.mark.parametrize("source", PAGES, ids=lambda path: path.name)
def test_flags_that_are_named_exist(source: Path) -> None:
    named = set(re.findall(r"--(?:enable-)?prefill-only[\w-]*", source.read_text()))
    assert named <= {*OWN_FLAGS, "--prefill-only-disable-kv-cache"}  # the last one is SGLang's


def test_the_table_of_headers_has_every_header() -> None:
    asked = {
        name.partition(":")[0]
        for name in in_code(first_cells(section("configuration.md", "Headers")))
    }
    known = {getattr(headers, name) for name in vars(headers) if name.endswith("_HEADER")}
    assert asked == known - {headers.ARRAYS_HEADER}
    assert headers.ARRAYS_HEADER in page("migration.md")


def shown(option: click.Parameter) -> str:
    """The default of an option as pages write it."""
    if option.required:
        return "required"
    if option.secondary_opts:  # the page lists the form that turns it off
        return "off"
    if isinstance(option.default, float):
        return f"{option.default:g}"
    return "none" if option.default is None else str(option.default)


def test_the_flags_of_the_grpc_command_are_listed_with_their_defaults() -> None:
    listed: dict[str, str] = {}
    rows = re.findall(r"^\| (`--.*?) \| (.*?) \|", section("grpc.md", "Flags"), re.MULTILINE)
    for names, default in rows:
        flags = re.findall(r"`(--[\w-]+)", names)
        defaults = default.split(", ") if ", " in default else [default] * len(flags)
        listed |= zip(flags, defaults, strict=True)
    options = COMMANDS["serve-grpc"].params
    assert listed == {(each.secondary_opts or each.opts)[0]: shown(each) for each in options}


def test_the_methods_of_grpc_are_listed() -> None:
    service = prefill_pb2.DESCRIPTOR.services_by_name["Prefill"]
    assert in_code(first_cells(section("grpc.md", "Calls"))) == [
        each.name for each in service.methods
    ]


def shell_commands() -> Iterator[tuple[str, str]]:
    """Lines of code blocks, continued ones joined, and commands in the text."""
    for source in PAGES:
        text = source.read_text()
        for block in re.findall(r"^```(?:sh|bash)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                yield source.name, line.partition(" #")[0]
        for code in re.findall(r"`((?:sglang-prefill|python -m bench)[^`]*)`", text):
            yield source.name, code


def options_of(command: click.Command) -> set[str]:
    return {name for each in command.params for name in (*each.opts, *each.secondary_opts)}


def test_commands_of_ours_exist_with_their_options() -> None:
    found = 0
    for source, line in shell_commands():
        for name, rest in re.findall(r"sglang-prefill ([a-z][\w-]*)(.*)", line):
            found += 1
            assert name in COMMANDS, f"{source}: {line}"
            assert set(re.findall(r" (--[\w-]+)", rest)) <= options_of(COMMANDS[name]), (
                f"{source}: {line}"
            )
    assert found > 5


def test_every_command_of_ours_is_described() -> None:
    text = "\n".join(each.read_text() for each in PAGES)
    assert [name for name in COMMANDS if f"sglang-prefill {name}" not in text] == []


def test_benchmarks_exist_with_their_options() -> None:
    found = 0
    for source, line in shell_commands():
        for name, rest in re.findall(r"python -m (bench[\w.]*)(.*)", line):
            found += 1
            rest = re.sub(r'"[^"]*"', "", rest)  # flags of a server
            module = import_module(name)
            main = module if hasattr(module, "main") else import_module(f"{name}.__main__")
            command = typer.Typer()
            command.command()(main.main)
            known = options_of(typer.main.get_command(command))
            assert set(re.findall(r" (--[\w-]+)", rest)) <= known, f"{source}: {line}"
    assert found > 5


def test_files_that_are_named_exist() -> None:
    found = 0
    for source in PAGES:
        for name in re.findall(r"`([\w/]+/\w+\.(?:py|proto|lua))`", source.read_text()):
            found += 1
            places = [ROOT / name, PACKAGE / name, ROOT / "triton_kernels/prefill_kernels" / name]
            assert any(place.exists() for place in places), f"{source.name}: {name}"
    assert found > 5


def test_the_presets_are_listed() -> None:
    assert sorted(in_code(first_cells(section("models.md", "Presets")))) == sorted(PRESETS)


def test_the_errors_and_options_of_the_client_exist() -> None:
    for name in in_code(first_cells(section("client.md", "Errors"))):
        assert hasattr(errors, name), name
    assert set(in_code(first_cells(section("client.md", "Options")))) == {
        each.name for each in fields(Options)
    }


def test_the_reasons_for_the_stock_path_are_listed() -> None:
    cells = first_cells(section("monitoring.md", "Why a request took the stock path"))
    assert in_code(cells) == list(StockReason)


def test_every_reason_for_the_stock_path_is_given() -> None:
    given = {
        node.attr
        for source in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "StockReason"
    }
    assert given == set(StockReason.__members__)


def test_the_ends_of_requests_are_listed() -> None:
    rows = re.findall(r"^\| (\d+) \|", section("operations.md", "Errors"), re.MULTILINE)
    assert sorted(map(int, rows)) == sorted(end.http for end in BAD_ENDS if end.http)
    assert {end.grpc for end in BAD_ENDS} <= set(in_code(first_cells(section("grpc.md", "Errors"))))
    (counted,) = re.findall(r"requests by outcome: (.*?)\.", section("monitoring.md", "Status"))
    assert set(in_code([counted])) == {"packed", "stock", *(end.counted for end in BAD_ENDS)}
