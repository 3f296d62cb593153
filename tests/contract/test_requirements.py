"""Packages that are installed with this one change nothing in a server that does not use it, each
has a tested lowest version, and docs/gpu.md lists all kernels and all packages that its steps
import when they start."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from itertools import accumulate
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OURS = {
    **dict.fromkeys(("bench", "sglang_prefill_ext", "tests"), ROOT),
    "prefill_kernels": ROOT / "triton_kernels",
}
GIVEN = {"torch", "triton"}
PAGE = (ROOT / "docs" / "gpu.md").read_text()
CONFTESTS = ("tests/conftest.py", "tests/kernels/conftest.py")
KERNEL_TESTS = sorted((ROOT / "tests" / "kernels").rglob("test_*.py"))
KERNELS = [
    f"bench/kernels/bench_{name}.py"
    for name in ("merge_state", "label_readout", "shared_prefix_attention")
]
SERVERS = [
    *(f"bench/{name}.py" for name in ("__main__", "gpu/__main__", "floor", "soak/__main__")),
    *(f"sglang_prefill_ext/{name}.py" for name in ("cli", "plugin", "border/activation")),
]


def brought_by(requirements: list[str]) -> set[str]:
    """Names of all packages that are installed with these, directly or through others."""
    found: set[tuple[str, str]] = set()  # with the extra that is asked for, if any
    waiting = [Requirement(each) for each in requirements]
    while waiting:
        required = waiting.pop()
        name = canonicalize_name(required.name)
        for extra in ("", *required.extras):
            if (name, extra) in found:
                continue
            found.add((name, extra))
            try:
                further = [Requirement(each) for each in requires(name) or ()]
            except PackageNotFoundError:  # for another platform
                continue
            waiting += [r for r in further if not r.marker or r.marker.evaluate({"extra": extra})]
    return {name for name, _ in found}


def test_uvicorn_reads_http_as_beside_sglang_alone() -> None:
    """If httptools is installed, uvicorn uses it; httptools does not limit the size of heads."""
    brought = brought_by(PROJECT["dependencies"])
    assert {"sglang", "uvicorn", "h11"} <= brought
    assert "httptools" not in brought
    fast = PROJECT["optional-dependencies"]["httptools"]
    assert "httptools" in brought_by(fast)


def test_every_package_has_a_lowest_version() -> None:
    """`make test` with `RESOLUTION=lowest-direct` tests these."""
    extras = PROJECT["optional-dependencies"].values()
    asked = [Requirement(each) for part in (PROJECT["dependencies"], *extras) for each in part]
    pinned = {
        required.name
        for name in ("sglang", "torch")
        for required in map(Requirement, requires(name) or ())
        if any(each.operator in {"==", "~="} for each in required.specifier)
    }
    unlimited = {each.name for each in asked if not each.specifier}
    assert unlimited - pinned == {PROJECT["name"]}


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """What runs when a module is imported: not functions, and not what is only for types."""
    for each in body:
        types_only = isinstance(each, ast.If) and "TYPE_CHECKING" in ast.unparse(each.test)
        if not (types_only or isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)):
            yield each
            inner = (node for node in ast.iter_child_nodes(each) if isinstance(node, ast.stmt))
            yield from _statements(inner)


@cache
def _imports(path: Path) -> set[str]:
    """Full names that a file imports, and those of the packages that they lie in."""
    names = set[str]()
    for each in _statements(ast.parse(path.read_text()).body):
        if isinstance(each, ast.Import):
            names |= {alias.name for alias in each.names}
        elif isinstance(each, ast.ImportFrom):
            names |= {f"{each.module}.{alias.name}" for alias in each.names}
    return {part for name in names for part in accumulate(name.split("."), "{}.{}".format)}


@cache
def _file_of(module: str) -> Path | None:
    path = OURS[module.partition(".")[0]] / module.replace(".", "/")
    return next(filter(Path.exists, (path.with_suffix(".py"), path / "__init__.py")), None)


def libraries_of(*files: Path | str) -> set[str]:
    """Third parties that are imported with these files."""
    waiting, seen, found = [ROOT / each for each in files], set[Path](), set[str]()
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            for name in _imports(path):
                if (top := name.partition(".")[0]) not in OURS:
                    found.add(top)
                elif (file := _file_of(name)) is not None:
                    waiting.append(file)
    return found - sys.stdlib_module_names - GIVEN


def _without_sglang() -> list[Path]:
    """The files that are left out where there is no SGLang."""
    (ignored,) = re.findall(r"^\| no SGLang \| `(--ignore=\S+)` \|$", PAGE, re.MULTILINE)
    command = ["bash", "-c", f"echo {ignored}"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [ROOT / each.removeprefix("--ignore=") for each in shown.split()]


def test_every_kernel_is_timed() -> None:
    benches = {each.stem for each in (ROOT / "bench" / "kernels").glob("bench_*.py")}
    assert set(re.findall(r"-m bench\.kernels\.(bench_\w+)", PAGE)) == benches
    asked = ["make", "--dry-run", "--old-file=setup", "bench-gpu"]
    shown = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (looped,) = re.findall(r"^for bench in ([\w ]+);", shown, re.MULTILINE)
    assert set(looped.split()) == benches


def test_the_kernel_tests_that_need_sglang_are_named() -> None:
    need_it = [each for each in KERNEL_TESTS if "sglang" in libraries_of(each)]
    assert sorted(_without_sglang()) == need_it


@pytest.mark.parametrize(
    ("steps", "files"),
    [
        ("step 3", KERNELS),
        ("step 2", [*CONFTESTS, *(set(KERNEL_TESTS) - set(_without_sglang()))]),
        ("steps 1, 4 to 6", SERVERS),
    ],
)
def test_packages_of_a_step_are_listed(steps: str, files: list[Path | str]) -> None:
    (row,) = re.findall(rf"^\| {steps} \| (.*) \|$", PAGE, re.MULTILINE)
    listed = row if "sglang" in libraries_of(*files) else row.partition("; SGLang")[0]
    there = brought_by(re.findall(r"[\w-]+(?:\.[\w-]+)*", listed))
    places = packages_distributions()
    needed = {name: set(map(canonicalize_name, places[name])) for name in libraries_of(*files)}
    assert [name for name, offered in needed.items() if offered.isdisjoint(there)] == []
