"""Apply the patch table: check all, apply all, verify all, or leave everything as it was."""

from __future__ import annotations

import logging
import pkgutil
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

from sglang_prefill_ext.errors import UnsupportedSGLangError
from sglang_prefill_ext.patching import guard, reach
from sglang_prefill_ext.patching.source import unbound
from sglang_prefill_ext.patching.spec import Aspect, Group, Kind, Mismatch, Patch, Use
from sglang_prefill_ext.patching.table import PATCHES
from sglang_prefill_ext.patching.uses import USES

_OTHER_PLUGIN = "uninstall the package that changes this too, or start without the flag"


@dataclass(frozen=True, slots=True)
class PatchState:
    """One patch in this process.

    Attributes:
        applied: whether the target carries the hook now.
        drift: whether the target's body differs from those verified; None if not applied.
    """

    id: str
    target: str
    group: Group
    applied: bool
    drift: bool | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Applied:
    patch: Patch
    owner: type | ModuleType
    original: object
    installed: object
    drift: bool


_applied: dict[str, _Applied] = {}


def apply(
    groups: Collection[Group],
    patches: Sequence[Patch] = PATCHES,
    uses: Sequence[Use] = USES,
) -> None:
    """Apply the patches of `groups` that this process does not have yet.

    What their hooks use unchanged is checked with them. The version is checked only beyond
    `Group.FLAGS`: options that nobody uses must not keep an unsupported SGLang from starting.

    Raises:
        UnsupportedSGLangError: something differs from the tables; the message lists each
            difference and its remedy, and nothing was changed.
    """
    pending = [p for p in patches if p.group in groups and p.id not in _applied]
    # Some are wanted only where what they change is there already.
    pending = [p for p in pending if not p.only_if_imported or p.module in sys.modules]
    if not pending:  # as whenever arguments arrive once more
        return
    needing = {patch.group for patch in pending}
    mismatches = guard.check_all(pending, [use for use in uses if needing & {*use.groups}])
    if needing - {Group.FLAGS}:
        mismatches += guard.check_version(guard.installed_version())
    _refuse(mismatches)
    drifted = {mismatch.id for mismatch in mismatches}
    try:
        for patch in pending:
            _install(patch, drift=patch.id in drifted)
        _rebind([_applied[patch.id] for patch in pending])
        _refuse(list(_verify(pending)))
    except Exception as error:
        _revert([patch.id for patch in pending])
        if isinstance(error, UnsupportedSGLangError):
            raise
        # SGLang logs a plugin's errors and goes on without it; callers stop only for ours.
        raise UnsupportedSGLangError(f"{type(error).__name__}: {error}") from error


def revert(groups: Collection[Group]) -> None:
    """Take the patches of `groups` off again; for tests, never on a live server.

    Raises:
        UnsupportedSGLangError: a target was changed again since, so that putting the original
            back would take another package's change off with ours.
    """
    _revert([key for key, applied in _applied.items() if applied.patch.group in groups])


def states(patches: Sequence[Patch] = PATCHES) -> list[PatchState]:
    """The state of every patch in this process; imports nothing."""
    return [_state(patch) for patch in patches]


def _state(patch: Patch) -> PatchState:
    applied = _applied.get(patch.id)
    carried = applied is not None and _is_carried(patch, applied.owner)
    drift = applied.drift if applied is not None else None
    return PatchState(patch.id, patch.target, patch.group, carried, drift)


def _install(patch: Patch, *, drift: bool) -> None:
    owner = guard.load_owner(patch)
    hook = pkgutil.resolve_name(patch.hook)
    original = vars(owner)[patch.attribute]
    if patch.kind is Kind.ATTRIBUTE:
        # A plain function would become a method of the instances that look the attribute up.
        installed: object = staticmethod(hook)
    else:
        installed = wrapped(original, hook, patch.kind)
    setattr(owner, patch.attribute, installed)
    _applied[patch.id] = _Applied(patch, owner, original, installed, drift)


def wrapped(raw: object, hook: Callable[..., Any], kind: Kind) -> object:
    """What takes the place of an attribute of a class or module: it, in a wrapper of SGLang's own.

    The public pair `register` and `apply_hooks` would lose hooks: `apply_hooks` applies a
    target only once, so that calling it here would drop every hook on the same target that a
    plugin loaded later registers (the gRPC plugin that SGLang depends on also adds flags to
    `ServerArgs.add_cli_args`), and it only logs a failure. It also looks for every target through
    all modules anew, which takes a second for all of ours. `_wrap_fn` is what it calls in the end.
    """
    # Imported here: reading the states needs no SGLang.
    from sglang.srt.plugins.hook_registry import HookType, _wrap_fn

    wrapper = _wrap_fn(unbound(raw), hook, HookType(kind.value))
    return type(raw)(wrapper) if isinstance(raw, classmethod | staticmethod) else wrapper


logger = logging.getLogger(__name__)


def _rebind(changes: Sequence[_Applied]) -> None:
    """Give modules that imported a function by its name what took its place.

    A pass for all of them: there are thousands of modules, and this is done in every process.
    """
    functions = {
        id(unbound(change.original)): unbound(change.installed)
        for change in changes
        if change.patch.kind is not Kind.ATTRIBUTE
    }
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            for name, value in list(vars(module).items()):
                if id(value) in functions:
                    setattr(module, name, functions[id(value)])


def _verify(patches: Sequence[Patch]) -> Iterator[Mismatch]:
    """Look at the classes themselves: is every hook there, and does every call reach it?"""
    for patch in patches:
        owner = _applied[patch.id].owner
        if not _is_carried(patch, owner):
            found = repr(vars(owner)[patch.attribute])
            yield _broken(patch, Aspect.APPLICATION, f"carries {patch.hook}", found)
        hook = pkgutil.resolve_name(patch.hook)
        for place in reach.overrides(owner, patch.attribute, hook):
            yield _bypassed(patch, f"{place} overrides it")
    wrapped = {p.id: p for p in patches if p.kind is not Kind.ATTRIBUTE}
    for key, place in reach.aliases({key: _applied[key].original for key in wrapped}):
        yield _bypassed(wrapped[key], f"{place} is still the original")


def _bypassed(patch: Patch, found: str) -> Mismatch:
    return _broken(patch, Aspect.OVERRIDE, "every call reaches the hook", found)


def _is_carried(patch: Patch, owner: type | ModuleType) -> bool:
    return reach.carries(vars(owner)[patch.attribute], pkgutil.resolve_name(patch.hook))


def _broken(patch: Patch, aspect: Aspect, expected: str, found: str) -> Mismatch:
    return Mismatch(patch.id, patch.target, aspect, expected, found, _OTHER_PLUGIN)


def _refuse(mismatches: Sequence[Mismatch]) -> None:
    """Raise if any mismatch is blocking; log the others."""
    if any(mismatch.blocking for mismatch in mismatches):
        raise UnsupportedSGLangError("\n".join(str(mismatch) for mismatch in mismatches))
    for mismatch in mismatches:
        logger.warning("%s", mismatch)


def _revert(ids: Sequence[str]) -> None:
    for key in reversed([key for key in ids if key in _applied]):
        applied = _applied[key]
        patch = applied.patch
        if vars(applied.owner)[patch.attribute] is not applied.installed:
            again = _broken(patch, Aspect.APPLICATION, "our wrapper on top", "a later change")
            raise UnsupportedSGLangError(str(again))
        setattr(applied.owner, patch.attribute, applied.original)
        del _applied[key]
