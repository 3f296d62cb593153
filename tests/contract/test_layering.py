"""Who may import whom. A module without a zone, or an import that no zone allows, fails here."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = {"sglang_prefill_ext": ROOT, "prefill_kernels": ROOT / "triton_kernels"}
HEAVY = ("torch", "triton", "zmq", "sglang")


@dataclass(frozen=True)
class Zone:
    """Modules with the same rights.

    Attributes:
        modules: patterns of module names, the package's own name cut off.
        zones: the other zones that they may import.
        libraries: the third parties that they may import.
    """

    modules: tuple[str, ...]
    zones: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()


# From the bottom up; the first pattern that fits gives a module its zone.
ZONES = {
    "errors": Zone(("errors",)),
    "pure": Zone(
        (
            "",
            "config",
            "wire",
            "wire.*",
            "oneshot",
            "oneshot.admission",
            "oneshot.boarding",
            "oneshot.budget",
            "oneshot.coalesce",
            "oneshot.distinct",
            "oneshot.execution",
            "oneshot.flight",
            "oneshot.forwards",
            "oneshot.graph_cost",
            "oneshot.graph_plan",
            "oneshot.graph_use",
            "oneshot.job",
            "oneshot.known_answers",
            "oneshot.verdict",
            "oneshot.layout",
            "oneshot.order",
            "oneshot.planner",
            "oneshot.policy",
            "oneshot.prefix_cache",
            "oneshot.prefix_policy",
            "oneshot.queue",
            "oneshot.rehearsal",
            "oneshot.runtime",
            "oneshot.split",
            "oneshot.stats",
            "oneshot.stock_order",
            "oneshot.whole_rows",
            "attention",
            "attention.kernel_plan",
            "attention.plan",
            "attention.readout_plan",
            "attention.tiling",
            "attention.way",
            "patching",
            "patching.docs",
            "patching.flag_patches",
            "patching.frontend_patches",
            "patching.handed",
            "patching.lock",
            "patching.process_patches",
            "patching.scan",
            "patching.scheduler_patches",
            "patching.source",
            "patching.spec",
            "patching.table",
            "patching.text_patches",
            "patching.upstream",
            "patching.uses",
            "schedulers",
            "schedulers.*",
            "runtime",
            "runtime.children",
            "runtime.idle",
            "runtime.pauses",
        ),
        zones=("errors",),
        libraries=(
            "msgspec",
            "numpy",
        ),
    ),
    "metrics": Zone(("metrics",), zones=("pure",), libraries=("prometheus_client",)),
    "runtime": Zone(
        ("runtime.*",), zones=("errors", "pure", "metrics"), libraries=("msgspec", "psutil")
    ),
    "frontend": Zone(
        ("frontend", "frontend.*"),
        zones=("errors", "pure", "metrics"),
        libraries=("msgspec", "numpy"),
    ),
    "tokenization": Zone(
        ("tokenization", "tokenization.*"),
        zones=("errors", "pure", "metrics", "frontend"),
        libraries=("fastokens", "gigatoken", "msgspec", "numpy", "tokenizers"),
    ),
    "attach": Zone(
        ("attach", "attach.*"),
        zones=("errors", "pure", "metrics", "runtime", "frontend", "tokenization"),
        libraries=("msgspec", "zmq"),
    ),
    "grpc": Zone(
        ("grpc_frontend", "grpc_frontend.*"),
        zones=("errors", "pure", "metrics", "runtime", "frontend", "attach"),
        libraries=(
            *("google", "grpc", "grpc_health", "grpc_reflection", "grpc_status", "grpc_tools"),
            *("msgspec", "numpy", "typer", "uvloop"),
        ),
    ),
    "client": Zone(
        ("client", "client.*"),
        zones=("errors", "frontend", "grpc"),
        libraries=("google", "grpc", "httpx", "numpy", "rich", "tenacity", "typer"),
    ),
    "guard": Zone(
        ("patching.guard", "patching.reach", "patching.doctor"),
        zones=("pure",),
        libraries=("packaging", "rich"),
    ),
    "kernels": Zone(("prefill_kernels", "prefill_kernels.*"), libraries=("torch", "triton")),
    "tensors": Zone(
        ("oneshot.*", "attention.*"),
        zones=("errors", "pure", "kernels"),
        libraries=("flashinfer", "numpy", "psutil", "sgl_kernel", "torch"),
    ),
    "registry": Zone(("compat.registry",), zones=("pure",), libraries=("sglang",)),
    "engine": Zone(("patching.engine",), zones=("errors", "pure", "guard", "registry")),
    "border": Zone(
        ("compat", "compat.*"),
        zones=(
            *("errors", "pure", "metrics", "runtime", "frontend", "tokenization", "attach"),
            *("tensors", "engine"),
        ),
        libraries=(
            "sglang",
            "transformers",
            *"torch numpy fastapi msgspec starlette uvicorn".split(),
        ),
    ),
    "entrances": Zone(("plugin", "platforms", "platforms.*"), zones=("border",)),
    "models": Zone(
        ("modelmaker", "modelmaker.*"),
        zones=("errors", "pure"),
        libraries=("numpy", "torch", "transformers", "tokenizers", "safetensors"),
    ),
    "tools": Zone(
        ("cli", "local_server", "demo", "demo.*"),
        zones=("errors", "pure", "client", "grpc", "guard", "models"),
        libraries=(
            "httpx",
            "matplotlib",
            "numpy",
            "prometheus_client",
            "rich",
            "tokenizers",
            "typer",
        ),
    ),
}
# Importing these imports none of HEAVY; hooks, the platform and the demo are loaded when used.
LIGHT = (
    "errors",
    "pure",
    "metrics",
    "runtime",
    "frontend",
    "tokenization",
    "client",
    "guard",
    "engine",
    "entrances",
)


def _modules() -> dict[str, Path]:
    """Every module of ours: name -> file."""
    found: dict[str, Path] = {}
    for package, parent in OURS.items():
        for path in sorted((parent / package).rglob("*.py")):
            name = path.relative_to(parent).with_suffix("").as_posix().replace("/", ".")
            found[name.removesuffix(".__init__")] = path
    return found


MODULES = _modules()


def _zone_of(module: str) -> str:
    """The zone of a module; empty if it has none."""
    name = module if module.startswith("prefill_kernels") else module.partition(".")[2]
    fits = (z for z, zone in ZONES.items() if any(fnmatchcase(name, p) for p in zone.modules))
    return next(fits, "")


def _imports(tree: ast.Module) -> Iterator[str]:
    """Full names of what is imported anywhere in a module, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "write imports in full"
            base = node.module or ""
            # `from package import name` imports a module if there is one of that name.
            names = (f"{base}.{alias.name}" for alias in node.names)
            yield from {name if name in MODULES else base for name in names}


def _forbidden(module: str, source: str) -> list[str]:
    """What the module imports although its zone may not."""
    own = _zone_of(module)
    zone = ZONES[own]
    forbidden = []
    for name in _imports(ast.parse(source)):
        root = name.partition(".")[0]
        if root in OURS:
            allowed = _zone_of(name) in (own, *zone.zones)
        else:
            allowed = root in sys.stdlib_module_names or root in zone.libraries
        if not allowed:
            forbidden.append(name)
    return forbidden


def _python(code: str) -> str:
    """What a fresh interpreter prints that was started in the repository's root."""
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def _heavy_after(*modules: str) -> str:
    lines = [f"import {module}" for module in modules]
    return _python("\n".join([*lines, "import sys", f"print({HEAVY} & sys.modules.keys())"]))


def test_every_module_has_a_zone() -> None:
    assert [module for module in MODULES if not _zone_of(module)] == []


def test_every_zone_has_a_module() -> None:
    assert {_zone_of(module) for module in MODULES} == set(ZONES)


def test_zones_form_layers() -> None:
    graph = {name: zone.zones for name, zone in ZONES.items()}
    order = list(TopologicalSorter(graph).static_order())
    assert sorted(order) == sorted(ZONES)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_its_zone_may(module: str) -> None:
    assert _forbidden(module, MODULES[module].read_text()) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("oneshot.planner", "import torch"),
        ("wire.packed", "def f():\n    from sglang.srt import utils"),
        ("frontend.pack", "from sglang_prefill_ext.compat import messages"),
        ("frontend.pack", "from sglang_prefill_ext import compat"),
        ("compat.http", "from sglang_prefill_ext import plugin"),
        ("attention.merge", "import sglang.srt.utils as u"),
    ],
)
def test_the_rule_catches_a_forbidden_import(module: str, source: str) -> None:
    assert len(_forbidden(f"sglang_prefill_ext.{module}", source)) == 1


def test_only_the_border_may_import_sglang() -> None:
    assert [z for z, zone in ZONES.items() if "sglang" in zone.libraries] == ["registry", "border"]


def test_nothing_may_import_an_entrance() -> None:
    assert [name for name, zone in ZONES.items() if "entrances" in zone.zones] == []


def test_only_patching_imports_by_name() -> None:
    """The table's strings are the one exception to imports that can be read off a module."""
    calls = ("import_module", "__import__", "resolve_name")
    dynamic = {
        name
        for name, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in calls
    }
    assert dynamic == {f"sglang_prefill_ext.patching.{m}" for m in ("engine", "guard", "source")}


def test_importing_the_package_imports_nothing_heavy() -> None:
    assert _heavy_after("sglang_prefill_ext") == "set()"


def test_light_zones_are_light_all_the_way_down() -> None:
    light = [module for module in MODULES if _zone_of(module) in LIGHT]
    assert _heavy_after(*light, "sglang_prefill_ext.cli") == "set()"


def test_front_ends_of_their_own_start_without_the_engine() -> None:
    heavy = _heavy_after("sglang_prefill_ext.grpc_frontend.servicer")
    assert heavy == "{'zmq'}"


def test_our_source_directory_does_not_hide_the_package_of_the_same_name() -> None:
    """sglang-kernel installs a package `triton_kernels`."""
    code = "import importlib.util as u; print(u.find_spec('triton_kernels').origin)"
    assert _python(code).endswith("site-packages/triton_kernels/__init__.py")
