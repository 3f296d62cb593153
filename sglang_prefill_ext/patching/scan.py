"""Find the names that our modules import and read, in their source text; imports nothing.

The border gets most of SGLang's objects as `Any`, so no type checker knows their classes. The
source only shows which names are read; `patches.tools.lock` looks up which classes have them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

PACKAGE = __name__.partition(".")[0]
BORDER = f"{PACKAGE}.border"
"""The package whose modules, at any depth, hold the hooks and alone import SGLang."""
GUARDED = ("sglang", "transformers")
"""Packages: the start of a server checks what the border imports of them."""
LIBRARIES = ("flashinfer", "sgl_kernel")
"""Packages: only `doctor` checks what our modules import of them. A server needs none of them; it
uses one if a flag selects it, and then compares its numbers at start."""


@dataclass(frozen=True, slots=True)
class Names:
    """What one module uses.

    Attributes:
        imports: dotted names of all imports anywhere in the module, those of our own included.
        made: dotted names of imported things that are called or subclassed.
        touched: attributes read of objects that may come from a guarded package; methods of our
            classes that may have a base from one.
        named: keywords of calls, and strings that are identifiers.
        defined: functions and annotated names; our stand-ins for SGLang's objects have members
            of these names.
    """

    imports: set[str] = field(default_factory=set)
    made: set[str] = field(default_factory=set)
    touched: set[str] = field(default_factory=set)
    named: set[str] = field(default_factory=set)
    defined: set[str] = field(default_factory=set)

    @property
    def all(self) -> set[str]:
        return self.touched | self.named | self.defined


Modules = Mapping[str, Names]
"""Dotted name of a module of ours -> the names that it uses."""


@cache
def read_package(directory: Path = Path(__file__).parents[1]) -> Modules:
    """Read every module below a package's directory."""
    found = {}
    for path in sorted(directory.rglob("*.py")):
        parts = path.relative_to(directory.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = read(path.read_text())
    return found


def read(source: str) -> Names:
    """Read one module."""
    tree = ast.parse(source)
    reader = _Reader(dict(_bindings(tree)))
    reader.visit(tree)
    return reader.names


def is_border(module: str) -> bool:
    return f"{module}.".startswith(f"{BORDER}.")


def is_of(target: str, roots: Iterable[str]) -> bool:
    """Whether a dotted name lies in one of these packages."""
    return target.partition(".")[0] in roots


def reached(modules: Modules, start: str) -> set[str]:
    """`start` and those of our modules that it imports, directly or through others."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        module = waiting.pop()
        if module in modules and module not in found:
            found.add(module)
            # `from package import name` imports a module if there is one of that name.
            imports = modules[module].imports
            waiting += [n if n in modules else n.rpartition(".")[0] for n in imports]
    return found


def users(modules: Modules, target: str, members: Iterable[str] = ()) -> tuple[str, ...]:
    """The modules that import `target`, or call or subclass the class whose ``__init__`` it is.

    If there are none: the modules of the border that read its name or one of `members`.

    Args:
        members: further names to look for, such as members that a class lacks.

    Returns:
        Dotted names without that of our package.
    """
    owner, _, name = target.rpartition(".")
    read = {name, *members} - {"__init__"}
    found = [
        module
        for module, names in modules.items()
        if target in names.imports or (name == "__init__" and owner in names.made)
    ] or [
        module
        for module, names in modules.items()
        if is_border(module) and read & (names.touched | names.named)
    ]
    return tuple(module.partition(".")[2] for module in found)


def _bindings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Each name that a module binds by an import, and what it stands for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((a.asname or a.name, f"{node.module}.{a.name}") for a in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (root, root)


class _Reader(ast.NodeVisitor):
    """Collects names; skips attributes of objects that cannot come from a guarded package."""

    def __init__(self, bound: Mapping[str, str]) -> None:
        self.names = Names(imports=set(bound.values()))
        self._bound = bound
        self._ours = {
            n for n, full in bound.items() if not (is_of(full, GUARDED) or is_border(full))
        }
        self._in_own_class = False

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer, self._in_own_class = self._in_own_class, self._is_own(node)
        self.names.made.update(filter(None, map(self._dotted, node.bases)))
        if not self._in_own_class:
            self.names.touched.update(n.name for n in node.body if isinstance(n, _FUNCTIONS))
        self.generic_visit(node)
        self._in_own_class = outer

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not self._is_ours(node.value):
            self.names.touched.add(node.attr)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        self.names.made.add(self._dotted(node.func))
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        self.names.named.add(node.arg or "")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and node.value.isidentifier():
            self.names.named.add(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.names.defined.add(node.name)
        self.generic_visit(node)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.names.defined.add(getattr(node.target, "id", ""))
        self.generic_visit(node)

    def _is_own(self, node: ast.ClassDef) -> bool:
        """Whether no base of a class can come from a guarded package.

        A base in the same module may itself have such a base, so it counts as one that can.
        """
        bases = {ast.unparse(base).partition("[")[0] for base in node.bases}
        return bases <= _PLAIN | self._ours

    def _is_ours(self, value: ast.expr) -> bool:
        if isinstance(value, ast.Name):
            own = self._in_own_class and value.id in ("self", "cls")
            return own or value.id in self._ours
        return isinstance(value, ast.Constant | ast.JoinedStr | ast.Dict | ast.List | ast.Set)

    def _dotted(self, node: ast.expr) -> str:
        """What a name, or an attribute of a name, stands for; empty for anything else."""
        if isinstance(node, ast.Attribute) and (owner := self._dotted(node.value)):
            return f"{owner}.{node.attr}"
        return self._bound.get(node.id, "") if isinstance(node, ast.Name) else ""


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_PLAIN = {"Exception", "RuntimeError", "ValueError", "object"}
