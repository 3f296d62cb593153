"""Which layers and libraries each layer may import; any other import fails here."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = {"sglang_prefill_ext": ROOT, "prefill_kernels": ROOT / "triton_kernels"}
SOURCES = ("sglang_prefill_ext", "triton_kernels", "tests", "bench", "patches")
HEAVY = ("torch", "triton", "zmq", "sglang")


@dataclass(frozen=True)
class Layer:
    """A folder, or a module beside the folders, with everything below it.

    Attributes:
        layers: the other layers that it may import.
        libraries: the third parties that it may import.
        light: importing it imports none of `HEAVY`; what is heavy in it is loaded when used.
    """

    layers: str = ""
    libraries: str = ""
    light: bool = True


# From the bottom up; the name is that of the folder or module.
LAYERS = {
    "": Layer(),
    "errors": Layer(),
    "config": Layer("errors"),
    "wire": Layer("errors config", "msgspec numpy"),
    "layout": Layer("errors", "numpy"),
    "moe": Layer("config", "msgspec numpy"),
    "metrics": Layer("wire moe", "msgspec prometheus_client"),
    "process": Layer("errors metrics", "msgspec psutil uvicorn"),
    "shared_device": Layer("errors", "numpy"),
    "scheduling": Layer("errors config wire layout", "numpy"),
    "startup": Layer("errors config wire scheduling", "numpy"),
    "prefill_kernels": Layer("", "torch triton", light=False),
    "attention": Layer(
        "errors config layout prefill_kernels", "flashinfer numpy sgl_kernel torch", light=False
    ),
    "recurrent": Layer("layout prefill_kernels", "numpy torch", light=False),
    "forward": Layer(
        "errors config wire layout moe scheduling attention recurrent prefill_kernels",
        "numpy psutil torch",
        light=False,
    ),
    "texts": Layer(
        "errors config wire metrics process", "fastokens gigatoken msgspec numpy tokenizers"
    ),
    "frontend": Layer("errors config wire metrics scheduling", "jinja2 msgspec numpy"),
    "attach": Layer(
        "errors config wire metrics process texts frontend", "msgspec zmq", light=False
    ),
    "grpc_frontend": Layer(
        "errors wire metrics process frontend attach",
        "google grpc grpc_health grpc_reflection grpc_status msgspec numpy typer uvloop",
        light=False,
    ),
    "client": Layer(
        "errors process frontend grpc_frontend", "google grpc httpx numpy rich tenacity typer"
    ),
    "local_server": Layer("errors process"),
    "fleet": Layer(
        "errors config wire metrics process shared_device frontend attach grpc_frontend"
        " local_server",
        "aiohttp msgspec numpy prometheus_client ray starlette typer uvicorn uvloop yarl",
    ),
    "sizing": Layer("errors config layout fleet", "rich typer"),
    "patching": Layer("", "msgspec packaging rich"),
    "border": Layer(
        "errors config wire layout moe metrics process shared_device scheduling startup"
        " attention recurrent forward texts frontend attach sizing patching",
        "sglang transformers torch numpy fastapi msgspec starlette",
        light=False,
    ),
    "plugin": Layer("border"),
    "platforms": Layer("border"),
    "modelmaker": Layer("errors", "numpy torch safetensors transformers tokenizers", light=False),
    "demo": Layer(
        "errors client modelmaker local_server",
        "httpx matplotlib prometheus_client rich tokenizers",
        light=False,
    ),
    "cli": Layer("errors client fleet sizing grpc_frontend patching modelmaker demo", "rich typer"),
}


def _modules() -> dict[str, Path]:
    """Every module of ours: name -> file."""
    found: dict[str, Path] = {}
    for package, parent in OURS.items():
        for path in sorted((parent / package).rglob("*.py")):
            name = path.relative_to(parent).with_suffix("").as_posix().replace("/", ".")
            found[name.removesuffix(".__init__")] = path
    return found


MODULES = _modules()
FOLDERS = [name for name, path in MODULES.items() if path.name == "__init__.py"]


def _layer_of(module: str) -> str:
    package, _, rest = module.partition(".")
    return package if package == "prefill_kernels" else rest.partition(".")[0]


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
    """What the module imports although its layer may not."""
    own = _layer_of(module)
    layers = {"", own, *LAYERS[own].layers.split()}
    libraries = {*sys.stdlib_module_names, *LAYERS[own].libraries.split()}
    return [
        name
        for name in _imports(ast.parse(source))
        if not (
            _layer_of(name) in layers
            if (root := name.partition(".")[0]) in OURS
            else root in libraries
        )
    ]


def _python(code: str) -> str:
    """Run code in a new interpreter in the repository's root; return its output."""
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def _heavy_after(*modules: str) -> str:
    lines = [f"import {module}" for module in modules]
    return _python("\n".join([*lines, "import sys", f"print({HEAVY} & sys.modules.keys())"]))


def test_every_folder_is_a_layer() -> None:
    assert {_layer_of(module) for module in MODULES} == set(LAYERS)


def test_layers_form_no_circle() -> None:
    graph = {name: layer.layers.split() for name, layer in LAYERS.items()}
    assert sorted(TopologicalSorter(graph).static_order()) == sorted(LAYERS)


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_parts_of_a_folder_form_no_circle(folder: str) -> None:
    """A part is a sub-folder, or a module beside the sub-folders."""

    def part(module: str) -> str:
        inside = module.startswith(f"{folder}.")
        return module.removeprefix(f"{folder}.").partition(".")[0] if inside else ""

    graph: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        if own := part(module):
            imported = set(map(part, _imports(ast.parse(path.read_text()))))
            graph.setdefault(own, set()).update(imported - {own, ""})
    TopologicalSorter(graph).prepare()


def test_no_layer_may_import_what_it_does_not() -> None:
    imported: dict[str, set[str]] = {name: set() for name in LAYERS}
    for module, path in MODULES.items():
        for name in _imports(ast.parse(path.read_text())):
            root = name.partition(".")[0]
            imported[_layer_of(module)].add(_layer_of(name) if root in OURS else root)
    unused = {
        name: {*layer.layers.split(), *layer.libraries.split()} - imported[name]
        for name, layer in LAYERS.items()
    }
    assert {name: names for name, names in unused.items() if names} == {}


def test_the_layers_are_described() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.split("\n## The folders\n")[1].split("\n## ")[0]
    described = {
        name: layers
        for names, layers in re.findall(r"^\| (`.*?`) \|.*\|(.*)\|$", table, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", names)
    }
    written = {name: ", ".join(layer.layers.split()) for name, layer in LAYERS.items() if name}
    assert {name: layers.strip() for name, layers in described.items()} == written


def test_no_folder_has_more_than_twenty_modules() -> None:
    modules = (path for top in SOURCES for path in (ROOT / top).rglob("*.py"))
    folders = Counter(path.parent for path in modules)
    assert [str(folder) for folder, count in folders.items() if count > 20] == []


def test_a_module_imports_only_what_its_layer_may() -> None:
    forbidden = {name: _forbidden(name, path.read_text()) for name, path in MODULES.items()}
    assert {name: imports for name, imports in forbidden.items() if imports} == {}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("scheduling.planner", "import torch"),
        ("wire.packed", "def f():\n    from sglang.srt import utils"),
        ("frontend.pack", "from sglang_prefill_ext.border import messages"),
        ("frontend.pack", "from sglang_prefill_ext import border"),
        ("border.http_server.own_routes", "from sglang_prefill_ext import plugin"),
        ("attention.partial", "import sglang.srt.utils as u"),
    ],
)
def test_the_rule_catches_a_forbidden_import(module: str, source: str) -> None:
    assert len(_forbidden(f"sglang_prefill_ext.{module}", source)) == 1


def test_only_the_border_may_import_sglang() -> None:
    assert [n for n, layer in LAYERS.items() if "sglang" in layer.libraries.split()] == ["border"]


def test_only_one_folder_needs_ray() -> None:
    importers = {
        name
        for name, path in MODULES.items()
        if any(each.partition(".")[0] == "ray" for each in _imports(ast.parse(path.read_text())))
    }
    folder = "sglang_prefill_ext.fleet.ray_serve"
    assert importers == {
        f"{folder}.{name}" for name in ("cluster", "deployments", "engine", "routers")
    }
    assert _python("import sys, sglang_prefill_ext.cli; print('ray' in sys.modules)") == "False"


def test_nothing_may_import_an_entrance() -> None:
    entrances = {"plugin", "platforms", "cli"}
    assert [n for n, layer in LAYERS.items() if entrances & {*layer.layers.split()}] == []


def test_only_patching_imports_by_name() -> None:
    """Imports must be visible in the source. The table's strings are the only exception."""
    calls = ("import_module", "__import__", "resolve_name")
    dynamic = {
        name
        for name, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in calls
    }
    names = ("border.patches", "patching.guard", "patching.source")
    assert dynamic == {f"sglang_prefill_ext.{name}" for name in names}


def test_importing_the_package_imports_nothing_heavy() -> None:
    assert _heavy_after("sglang_prefill_ext") == "set()"


def test_light_layers_are_light_all_the_way_down() -> None:
    light = [module for module in MODULES if LAYERS[_layer_of(module)].light]
    assert _heavy_after(*light, "sglang_prefill_ext.cli") == "set()"


def test_front_ends_of_their_own_start_without_the_engine() -> None:
    heavy = _heavy_after("sglang_prefill_ext.grpc_frontend.servicer")
    assert heavy == "{'zmq'}"


def test_our_source_directory_does_not_hide_the_package_of_the_same_name() -> None:
    """sglang-kernel installs a package `triton_kernels`."""
    code = "import importlib.util as u; print(u.find_spec('triton_kernels').origin)"
    assert _python(code).endswith("site-packages/triton_kernels/__init__.py")
