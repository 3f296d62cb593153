"""Generate the locks of what we change and use of SGLang, from our source and SGLang's.

``python -m patches.tools.lock`` writes them, and ``make lock`` also renews the docs. Run it after
a change of what the border uses or of the table of changes, and for a new release of SGLang. The
diff of the locks shows what has changed.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from patches.tools.handed import HANDED, READ_ELSEWHERE
from sglang_prefill_ext.patching import guard, scan, source
from sglang_prefill_ext.patching.scan import GUARDED, LIBRARIES, Modules, is_of
from sglang_prefill_ext.patching.spec import Group, Patch, Use, UseKind
from sglang_prefill_ext.patching.table import LOCK, PATCHES, USES_LOCK, load_uses

Handed = Mapping[Group, Sequence[str]]


def dump(uses: Iterable[Use]) -> str:
    """The text of a lock: a line a use, sorted by target."""
    names = ("kind", "groups", "signature", "body", "members")
    return _text(
        (use.target, {name: fact for name in names if (fact := getattr(use, name))})
        for use in sorted(uses, key=lambda use: use.target)
    )


def _text(entries: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    lines = (f" {json.dumps(name)}: {json.dumps(facts)}" for name, facts in entries)
    return "{\n" + ",\n".join(lines) + "\n}\n"


def build(
    modules: Modules,
    patches: Sequence[Patch] = PATCHES,
    handed: Handed = HANDED,
    old: Path = USES_LOCK,
) -> list[Use]:
    """List what our modules use of the installed SGLang and of libraries; imports all of it.

    Targets of patches are left out, because the table of changes has them.

    Args:
        old: an earlier lock, from which uses of libraries that cannot be imported here are kept.

    Raises:
        Exception: something that is used cannot be imported, or does not exist.
    """
    of_modules: dict[str, set[Group]] = defaultdict(set)  # groups whose hooks run the module
    for patch in patches:
        for module in scan.reached(modules, patch.hook.partition(":")[0]):
            of_modules[module].add(patch.group)
    read, read_elsewhere = _what_is_read(modules, of_modules)
    patched = {patch.target for patch in patches}
    targets = _groups_of_targets(modules, of_modules, patches, handed)
    uses = {
        use.target: replace(use, groups=tuple(group for group in Group if group in groups))
        for target, groups in targets.items()
        for use in _uses_of(target, read_elsewhere if target in READ_ELSEWHERE else read)
        if not patched & _names_of(use.target)
    }
    return [*uses.values(), *_library_uses(modules, old)]


class _Read(NamedTuple):
    """Names found in our source.

    Attributes:
        made: dotted names that are called or subclassed.
        methods: names read of objects, which may be methods or other members.
        members: the same, with keywords and strings, which may name a member but no method.
    """

    made: set[str]
    methods: set[str]
    members: set[str]


def _what_is_read(modules: Modules, running: Iterable[str]) -> tuple[_Read, _Read]:
    """What the border reads, and what all modules of ours that run in a server read."""
    border = [names for module, names in modules.items() if scan.is_border(module)]
    everywhere = [modules[module] for module in running]
    made = set().union(*(names.made for names in border))
    touched = set().union(*(names.touched for names in border)) - {"__init__"}
    return (
        _Read(made, touched, touched.union(*(names.named for names in border))),
        _Read(
            made,
            touched.union(*(names.touched | names.defined for names in everywhere)),
            touched.union(*(names.all for names in everywhere)),
        ),
    )


def _groups_of_targets(
    modules: Modules, of_modules: Mapping[str, set[Group]], patches: Iterable[Patch], handed: Handed
) -> dict[str, set[Group]]:
    """Map what the border imports or gets without an import to the groups whose hooks need it.

    A class whose function is patched is a target too, because hooks get its instances.
    """
    found: dict[str, set[Group]] = defaultdict(set)
    for module, names in modules.items():
        if scan.is_border(module):
            for target in _imported(names):
                found[target] |= of_modules.get(module, set())
    for patch in patches:
        if not patch.only_if_imported:
            found[patch.owner].add(patch.group)
    for group, targets in handed.items():
        for target in targets:
            found[target].add(group)
    return found


def _imported(names: scan.Names) -> Iterator[str]:
    """What a module of the border imports; of imported modules, the things that it reads there."""
    for target in names.imports:
        if not is_of(target, GUARDED):
            continue
        found = source.find(target)
        if isinstance(found, ModuleType):
            for name, value in vars(found).items():
                if name in names.all and getattr(value, "__module__", "") == found.__name__:
                    yield f"{target}.{name}"
        else:
            yield target


def _names_of(target: str) -> set[str]:
    """The target's dotted name and, for a method, the name that it would have in each base."""
    owner, _, name = target.rpartition(".")
    found = source.find(owner) if "." in owner else None
    if not isinstance(found, type):
        return {target}
    return {target} | {
        f"{base.__module__}.{base.__qualname__}.{name}" for base in source.own_bases(found)
    }


def _uses_of(target: str, read: _Read) -> Iterator[Use]:
    found = source.find(target)
    if inspect.isfunction(found):
        yield _function(target, found)
    elif isinstance(found, type):
        yield from _uses_of_class(target, found, read)
    else:
        yield Use(target, UseKind.VALUE)


def _uses_of_class(target: str, owner: type, read: _Read) -> Iterator[Use]:
    methods = read.methods | ({"__init__"} if target in read.made else set())
    names = sorted(source.members_of(owner) & (methods | read.members))
    values = {name: source.underlying(inspect.getattr_static(owner, name, None)) for name in names}
    # Python itself makes some, as `_replace` of a named tuple; their bodies are its own.
    functions = {
        name: value
        for name, value in values.items()
        if inspect.isfunction(value) and is_of(value.__module__, (*GUARDED, *LIBRARIES))
    }
    yield Use(target, UseKind.CLASS, members=tuple(n for n in names if n not in functions))
    for name, function in functions.items():
        if name in methods and source.source_of(function):  # a generated constructor has none
            yield _function(f"{target}.{name}", function)


def _function(target: str, function: Any) -> Use:
    body = source.fingerprint(source.source_of(function))
    return Use(target, UseKind.FUNCTION, signature=source.signature_text(function), body=body[:16])


def _library_uses(modules: Modules, old: Path) -> Iterator[Use]:
    """Uses of libraries; without bodies, because SGLang decides which releases are installed."""
    for names in modules.values():
        read = _Read(names.made, names.touched, set())
        for target in names.imports:
            if is_of(target, LIBRARIES):
                yield from (replace(use, body="") for use in _uses_of_library(target, read, old))


def _uses_of_library(target: str, read: _Read, old: Path) -> list[Use]:
    try:
        return [*_uses_of(target, read)]
    except Exception:
        # It cannot be imported here, maybe built for another device: keep what the old lock says.
        return [use for use in load_uses(old) if f"{use.target}.".startswith(f"{target}.")]


def changed(patches: Sequence[Patch] = PATCHES) -> str:
    """The text of the lock of changes: one line per patch.

    The fingerprint of the installed release's body is added to the known ones.
    """
    release = guard.installed_version() or ""
    entries = []
    for patch in patches:
        if inspect.isfunction(target := source.find(patch.target)):
            body = source.fingerprint(source.source_of(target))
            facts = {
                "signature": source.signature_text(target),
                "fingerprints": {**patch.fingerprints, release: body},
            }
            entries.append((patch.id, facts))
    return _text(entries)


def main() -> None:
    for path, text in ((LOCK, changed()), (USES_LOCK, dump(build(scan.read_package())))):
        path.write_text(text)
        sys.stdout.write(f"{path}: {text.count(chr(10)) - 2}\n")


if __name__ == "__main__":
    main()
