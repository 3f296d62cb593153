"""Read signatures, bodies and members of functions and classes, in the form `guard` compares."""

from __future__ import annotations

import ast
import dis
import hashlib
import importlib.util
import inspect
import io
import pkgutil
import textwrap
import tokenize
from collections.abc import Callable, Iterable, Iterator
from functools import _lru_cache_wrapper, cache
from types import CodeType, ModuleType
from typing import Any


def unbound(raw: object) -> object:
    """The function in a `classmethod` or `staticmethod`; anything else as it is."""
    return raw.__func__ if isinstance(raw, (classmethod, staticmethod)) else raw


def underlying(raw: object) -> object:
    """Strip descriptors and wrappers from a class attribute; return what is left.

    `functools.wraps` and its caches leave a chain of ``__wrapped__``, Triton a ``fn``. Its end is
    the function that SGLang wrote, however often it has been wrapped.
    """
    value = unbound(raw)
    while type(value).__module__.startswith("triton.") and hasattr(value, "fn"):
        value = value.fn
    if inspect.isfunction(value) or isinstance(value, _lru_cache_wrapper):
        return inspect.unwrap(value)
    return value


def find(target: str) -> object:
    """Import what a dotted name stands for, and strip descriptors and wrappers from it.

    Raises:
        Exception: whatever the import raises; `AttributeError` if the name does not exist.
    """
    owner_name, _, name = target.rpartition(".")
    owner = _resolved(owner_name)
    if isinstance(owner, ModuleType):
        return underlying(_resolved(target))
    return underlying(inspect.getattr_static(owner, name))  # unbound


def _resolved(name: str) -> object:
    """As `pkgutil.resolve_name`, which does not say why a module cannot be imported."""
    try:
        return pkgutil.resolve_name(name)
    except AttributeError as error:
        package = error.obj
        if isinstance(package, ModuleType) and hasattr(package, "__path__"):
            module = f"{package.__name__}.{error.name}"
            if importlib.util.find_spec(module):
                importlib.import_module(module)
        raise


def signature_text(function: Callable[..., Any]) -> str:
    """Names, kinds and defaults of the parameters. No annotations: a change has no effect."""
    signature = inspect.signature(function)
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))


def source_of(value: Any) -> str:
    """The dedented source of a function or class; empty where Python has none."""
    try:
        return _source_of(value)
    except (OSError, TypeError):
        return ""


@cache  # both checks of a target read it, and so does every process that is forked after a check
def _source_of(value: Any) -> str:
    return textwrap.dedent(inspect.getsource(value))


@cache
def names_in(source: str) -> frozenset[str]:
    """Every name and dotted name in the source: ``self``, ``self.queue``, ``self.queue.pop``.

    Empty if the text is not valid Python by itself, such as a lambda cut from its line.
    """
    try:
        nodes = ast.walk(ast.parse(source))
    except SyntaxError:
        return frozenset()
    return frozenset(ast.unparse(n) for n in nodes if isinstance(n, (ast.Name, ast.Attribute)))


def missing_members(owner: type, names: Iterable[str]) -> list[str]:
    """The names that neither the class nor a base defines, declares or assigns to ``self``."""
    missing = [name for name in names if not hasattr(owner, name)]
    for base in owner.__mro__:
        declared = inspect.get_annotations(base)
        missing = [n for n in missing if n not in declared and not _assigns(base, n)]
    return missing


def own_bases(owner: type) -> list[type]:
    """The class and those of its bases that come from the same distribution."""
    root = owner.__module__.partition(".")[0]
    return [base for base in owner.__mro__ if base.__module__.partition(".")[0] == root]


def members_of(owner: type) -> set[str]:
    """The names that the class or a base from its own distribution defines, declares or assigns.

    Of double-underscore names only ``__init__``.
    """
    found: set[str] = set()
    for base in own_bases(owner):
        methods = filter(inspect.isfunction, map(underlying, vars(base).values()))
        found |= {*vars(base), *inspect.get_annotations(base)}
        found.update(*map(_assigned_by, methods))
    return {name for name in found if not name.startswith("__") or name == "__init__"}


def _assigns(owner: type, name: str) -> bool:
    """Whether a method assigns the name to ``self``; disassembles only those that mention it."""
    return any(
        any(name in code.co_names for code in _nested(method.__code__))
        and name in _assigned_by(method)
        for method in map(underlying, vars(owner).values())
        if inspect.isfunction(method)
    )


def _nested(code: CodeType) -> Iterator[CodeType]:
    """The code object, and those of the functions nested in it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _nested(const)


@cache
def _assigned_by(method: Callable[..., Any]) -> set[str]:
    """Names that the code of a method stores in ``self``; reading its source would be slow."""
    return {name for code in _nested(method.__code__) for name in _stored(code)}


def _stored(code: CodeType) -> Iterator[str]:
    loaded = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "STORE_ATTR" and loaded == "self":
            yield instruction.argval
        loaded = instruction.argval
        if isinstance(loaded, tuple) and loaded:  # one instruction that loads two names
            loaded = loaded[-1]


@cache
def fingerprint(source: str) -> str:
    """SHA-256 (hex) of the source without comments, trailing space and blank lines.

    Textual, so that it does not depend on the Python version as an AST dump would.
    """
    lines = source.splitlines()
    for row, column in _comment_starts(source):
        lines[row - 1] = lines[row - 1][:column]
    kept = [line.rstrip() for line in lines if line.strip()]
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()


def _comment_starts(source: str) -> list[tuple[int, int]]:
    """Row (from 1) and column of each comment; none for text that is not Python by itself."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, SyntaxError):
        return []
    return [token.start for token in tokens if token.type == tokenize.COMMENT]
