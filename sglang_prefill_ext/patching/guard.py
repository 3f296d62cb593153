"""Compare the tables of changes and uses with the installed SGLang, before a change is applied.

A patch needs its target's signature and the names that its hook relies on. A changed body of the
target is reported, not refused. A used function needs its signature, and a used class the members
that hooks read. `doctor` reports changed bodies of used functions; the start of a server does not
look at them.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib import metadata
from types import ModuleType

from packaging.specifiers import SpecifierSet

from sglang_prefill_ext import SUPPORTED_SGLANG
from sglang_prefill_ext.patching import source
from sglang_prefill_ext.patching.spec import Aspect, Kind, Mismatch, Patch, Use, UseKind

OTHER_RELEASE = (
    f'install a supported release (pip install "sglang{SUPPORTED_SGLANG}") '
    "or start without --enable-prefill-only"
)
_REINSTALL = "reinstall sglang-prefill-ext; its own code cannot be loaded"
_LIBRARY = "leave --prefill-only-attention at auto, fused or merge, which need no library"
_CANNOT_IMPORT = "correct this first; SGLang itself cannot be imported"
_LOOK = "nothing to do now; compare the two bodies before renewing the lock"


def installed_version(distribution: str = "sglang") -> str | None:
    """Version of an installed distribution, read without importing it; None if absent."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def check_version(version: str | None) -> list[Mismatch]:
    """Refuse a release outside `SUPPORTED_SGLANG`, even where every target matches.

    A hook also depends on what surrounds its target, which no check of the target can see.
    """
    if version is not None and SpecifierSet(SUPPORTED_SGLANG).contains(version, prereleases=True):
        return []
    found = "not installed" if version is None else version
    return [
        Mismatch("all", "sglang", Aspect.VERSION, SUPPORTED_SGLANG, found, remedy=OTHER_RELEASE)
    ]


def check(patch: Patch) -> list[Mismatch]:
    """Compare one patch with the installed SGLang; imports the target's module and the hook's.

    Returns:
        Every difference found; those with ``blocking=False`` do not keep the patch from working.
    """
    return [*_check_target(patch), *_check_hook(patch)]


def check_use(use: Use) -> list[Mismatch]:
    """Find at most one blocking difference in what hooks use of SGLang; imports its module."""
    try:
        found = source.find(use.target)
    except Exception as error:
        return [_cannot_import(use, Aspect.TARGET, use.target, error)]
    if use.kind is UseKind.CLASS and isinstance(found, type):
        if missing := source.missing_members(found, use.members):
            lacks = "lacks " + ", ".join(missing)
            mismatch = differs(use, Aspect.MEMBERS, ", ".join(use.members), lacks)
            return [replace(mismatch, names=tuple(missing))]
    elif use.kind is UseKind.FUNCTION and inspect.isfunction(found):
        if (signature := source.signature_text(found)) != use.signature:
            return [differs(use, Aspect.SIGNATURE, use.signature, signature)]
    elif use.kind is not UseKind.VALUE:
        return [differs(use, Aspect.TARGET, f"a {use.kind}", type(found).__name__)]
    return []


def check_body(use: Use) -> list[Mismatch]:
    """Compare the body of a use that `check_use` found to fit; a difference is not blocking.

    It takes about a millisecond.
    """
    found = source.fingerprint(source.source_of(source.find(use.target))) if use.body else ""
    if found.startswith(use.body):
        return []
    return [_drifted(use, f"{use.body[:12]} (locked)", found)]


def check_library(use: Use) -> list[Mismatch] | None:
    """Compare a use of a library that a server does not need; imports its module.

    Returns:
        At most one difference, not blocking; None where the library cannot be imported.
    """
    try:
        pkgutil.resolve_name(use.target.rpartition(".")[0])
    except Exception:
        # Not installed, or built for another device: no flag can select the library here.
        return None
    return [replace(each, remedy=_LIBRARY, blocking=False) for each in check_use(use)]


def check_all(patches: Iterable[Patch], uses: Iterable[Use]) -> list[Mismatch]:
    changed = [mismatch for patch in patches for mismatch in check(patch)]
    return [*changed, *(mismatch for use in uses for mismatch in check_use(use))]


def told(mismatches: Iterable[Mismatch]) -> str:
    """Return what an operator reads; an error of the machine is told once for all it concerns."""
    alike: dict[tuple[str, ...], list[Mismatch]] = {}
    for each in mismatches:
        failed = each.remedy == _CANNOT_IMPORT
        key = (each.found,) if failed else (each.id, each.target, each.aspect)
        alike.setdefault(key, []).append(each)
    more = "\n    and {} others, for the same reason"
    return "\n".join(
        f"{same[0]}{more.format(len(same) - 1) if len(same) > 1 else ''}" for same in alike.values()
    )


def load_owner(patch: Patch) -> type | ModuleType:
    """Import and return the class or module that a patch changes.

    Raises:
        Exception: whatever the import raises; `ImportError` if there is no such thing.
    """
    module, name = importlib.import_module(patch.module), patch.owner.rpartition(".")[2]
    if not hasattr(module, name):
        return importlib.import_module(patch.owner)
    owner: type | ModuleType = getattr(module, name)
    return owner


def _check_target(patch: Patch) -> Iterator[Mismatch]:
    try:
        owner = load_owner(patch)
    except Exception as error:
        # Importing SGLang can raise anything.
        yield _cannot_import(patch, Aspect.TARGET, patch.owner, error)
        return
    if patch.attribute not in vars(owner):
        inherited = hasattr(owner, patch.attribute)
        found = "inherited from another class" if inherited else "no such attribute"
        yield differs(patch, Aspect.TARGET, "defined by the class itself", found)
        return
    target = source.underlying(vars(owner)[patch.attribute])
    if patch.kind is not Kind.ATTRIBUTE:
        if not inspect.isfunction(target):
            yield differs(patch, Aspect.TARGET, "a function", type(target).__name__)
            return
        signature = source.signature_text(target)
        if signature != patch.signature:
            yield differs(patch, Aspect.SIGNATURE, patch.signature, signature)
    reader = owner if patch.kind is Kind.ATTRIBUTE else target
    names = patch.relies_on.split()
    if missing := sorted(set(names) - source.names_in(source.source_of(reader))):
        found = "not in the source: " + ", ".join(missing)
        yield differs(patch, Aspect.NAMES, ", ".join(names), found)
    body, known = source.fingerprint(source.source_of(target)), patch.fingerprints
    if known and body not in known.values():
        expected = ", ".join(f"{digest[:12]} ({seen})" for seen, digest in known.items())
        yield _drifted(patch, expected, body)


def _check_hook(patch: Patch) -> Iterator[Mismatch]:
    try:
        hook = pkgutil.resolve_name(patch.hook)
    except Exception as error:
        yield _cannot_import(patch, Aspect.HOOK, patch.hook, error)
        return
    if not callable(hook):
        found = type(hook).__name__
        yield differs(patch, Aspect.HOOK, f"{patch.hook} is callable", found, _REINSTALL)


def _cannot_import(checked: Patch | Use, aspect: Aspect, name: str, error: Exception) -> Mismatch:
    # A hook's module imports SGLang too, so the missing name may be SGLang's or ours.
    ours = (getattr(error, "name", None) or "").partition(".")[0] == "sglang_prefill_ext"
    remedy = _REINSTALL if ours else OTHER_RELEASE
    if isinstance(error, OSError):  # of the machine, such as a home that cannot be written
        remedy = _CANNOT_IMPORT
    found = f"{type(error).__name__}: {error}"
    return differs(checked, aspect, f"{name} can be imported", found, remedy)


def differs(
    checked: Patch | Use, aspect: Aspect, expected: str, found: str, remedy: str = OTHER_RELEASE
) -> Mismatch:
    return Mismatch(checked.id, checked.target, aspect, expected, found, remedy)


def _drifted(checked: Patch | Use, expected: str, found: str) -> Mismatch:
    return replace(differs(checked, Aspect.BODY, expected, found[:12], _LOOK), blocking=False)
