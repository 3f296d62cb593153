"""Apply the patch table to this process: check, apply and verify all patches, or change nothing."""

from __future__ import annotations

import logging
import pkgutil
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from sglang_prefill_ext.errors import UnsupportedSGLangError
from sglang_prefill_ext.patching import guard, reach
from sglang_prefill_ext.patching.source import unbound
from sglang_prefill_ext.patching.spec import Aspect, Group, Kind, Mismatch, Patch, Use
from sglang_prefill_ext.patching.table import PATCHES, USES

logger = logging.getLogger(__name__)

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


@dataclass(frozen=True, slots=True)
class _Applied:
    patch: Patch
    owner: type | ModuleType
    hook: Callable[..., Any]
    original: object
    installed: object
    drift: bool

    @property
    def is_function(self) -> bool:
        return self.patch.kind is not Kind.ATTRIBUTE

    @property
    def is_carried(self) -> bool:
        return reach.carries(vars(self.owner)[self.patch.attribute], self.hook)


_applied: dict[str, _Applied] = {}


def apply(
    groups: Collection[Group],
    patches: Sequence[Patch] = PATCHES,
    uses: Sequence[Use] = USES,
) -> None:
    """Apply the patches of `groups` that this process does not have yet.

    The parts of SGLang that their hooks use unchanged are checked, too. SGLang's version is checked
    only for groups other than `Group.FLAGS`: unused options must not keep an unsupported SGLang
    from starting.

    Raises:
        UnsupportedSGLangError: something differs from the tables; the message lists each
            difference and its remedy, and nothing was changed.
    """
    pending = [p for p in patches if p.group in groups and p.id not in _applied]
    # Some patches are applied only if their target module was imported already.
    pending = [p for p in pending if not p.only_if_imported or p.module in sys.modules]
    if not pending:  # e.g. when `ServerArgs` are unpickled again
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
        changes = [_applied[patch.id] for patch in pending]
        _rebind([(each.original, each.installed) for each in changes if each.is_function])
        _refuse(list(_verify(changes)))
    except Exception as error:
        _revert(pending)
        if isinstance(error, UnsupportedSGLangError):
            raise
        # SGLang only logs errors of a plugin and goes on; our callers handle this type.
        raise UnsupportedSGLangError(f"{type(error).__name__}: {error}") from error


def states(patches: Sequence[Patch] = PATCHES) -> list[PatchState]:
    """The state of every patch in this process; imports nothing."""
    return [_state(patch) for patch in patches]


def _state(patch: Patch) -> PatchState:
    applied = _applied.get(patch.id)
    found = (False, None) if applied is None else (applied.is_carried, applied.drift)
    return PatchState(patch.id, patch.target, patch.group, *found)


def _install(patch: Patch, *, drift: bool) -> None:
    owner = guard.load_owner(patch)
    hook = pkgutil.resolve_name(patch.hook)
    original = vars(owner)[patch.attribute]
    if patch.kind is Kind.ATTRIBUTE:
        # A plain function would be bound as a method when it is looked up on an instance.
        installed: object = staticmethod(hook)
    else:
        installed = wrapped(original, hook, patch.kind)
    setattr(owner, patch.attribute, installed)
    _applied[patch.id] = _Applied(patch, owner, hook, original, installed, drift)


def wrapped(raw: object, hook: Callable[..., Any], kind: Kind) -> object:
    """Wrap an attribute of a class or module with a hook, by SGLang's own `_wrap_fn`.

    SGLang's public `register` and `apply_hooks`, which end in `_wrap_fn`, are not used for three
    reasons. `apply_hooks` handles a target only once: if it were called here, hooks that a plugin
    loaded later registers on the same target would be lost (the gRPC plugin that SGLang depends on
    also adds flags to `ServerArgs.add_cli_args`). It only logs failures. And it searches all
    modules for every target, which takes a second for all of ours.
    """
    # Imported here, so that `states` works without importing SGLang.
    from sglang.srt.plugins.hook_registry import HookType, _wrap_fn

    wrapper = _wrap_fn(unbound(raw), hook, HookType(kind.value))
    return type(raw)(wrapper) if isinstance(raw, classmethod | staticmethod) else wrapper


def _rebind(changes: Sequence[tuple[object, object]]) -> None:
    """In modules that imported the first of two functions by name, put the second in its place.

    One pass handles all functions: there are thousands of modules, and every process does this.
    """
    functions = {id(unbound(old)): unbound(new) for old, new in changes}
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            for name, value in list(vars(module).items()):
                if id(value) in functions:
                    setattr(module, name, functions[id(value)])


def _verify(changes: Sequence[_Applied]) -> Iterator[Mismatch]:
    """Yield a mismatch for every target that lacks its hook, and for every way around a hook."""
    for each in changes:
        patch = each.patch
        if not each.is_carried:
            found = repr(vars(each.owner)[patch.attribute])
            expected = f"carries {patch.hook}"
            yield guard.differs(patch, Aspect.APPLICATION, expected, found, _OTHER_PLUGIN)
        for place in {*reach.overrides(each.owner, patch.attribute, each.hook)} - {patch.spares}:
            yield _bypassed(patch, f"{place} overrides it")
    functions = {each.patch.id: each for each in changes if each.is_function}
    for key, place in reach.aliases({key: each.original for key, each in functions.items()}):
        yield _bypassed(functions[key].patch, f"{place} is still the original")


def _bypassed(patch: Patch, found: str) -> Mismatch:
    expected = "every call reaches the hook"
    return guard.differs(patch, Aspect.OVERRIDE, expected, found, _OTHER_PLUGIN)


def _refuse(mismatches: Sequence[Mismatch]) -> None:
    """Raise if any mismatch is blocking; log the others."""
    if any(mismatch.blocking for mismatch in mismatches):
        raise UnsupportedSGLangError(guard.told(mismatches))
    for mismatch in mismatches:
        logger.warning("%s", mismatch)


def _revert(patches: Sequence[Patch]) -> None:
    changes = [_applied.pop(patch.id) for patch in patches if patch.id in _applied]
    for change in reversed(changes):
        setattr(change.owner, change.patch.attribute, change.original)
    _rebind([(each.installed, each.original) for each in changes if each.is_function])
