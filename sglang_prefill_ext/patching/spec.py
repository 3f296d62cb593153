"""Data: one change to SGLang, one thing of SGLang that hooks use unchanged, and a mismatch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar


class Kind(StrEnum):
    """How a hook joins its target; the first three are SGLang's own hook types."""

    BEFORE = "before"  # hook(*args, **kwargs) -> (args, kwargs) or None
    AFTER = "after"  # hook(result, *args, **kwargs) -> new result, or None to keep it
    AROUND = "around"  # hook(original, *args, **kwargs) -> result
    ATTRIBUTE = "attribute"  # the hook takes the place of a class attribute that SGLang calls


class Group(StrEnum):
    """Patches that are applied together, by the process that needs them."""

    FLAGS = "flags"  # always: they add options and change nothing until one is used
    FRONTEND = "frontend"  # with the flag on: tokenizer manager, HTTP, Engine
    SCHEDULER = "scheduler"  # with the flag on: the scheduler of every rank
    DETOKENIZER = "detokenizer"  # with the flag on: every detokenizer
    DP_CONTROLLER = "dp_controller"  # with the flag on: the data-parallel controller
    CPU = "cpu"  # together with SCHEDULER, on the CPU platform of this package


@dataclass(frozen=True, slots=True)
class Patch:
    """One change to one attribute of one SGLang class or module.

    Attributes:
        id: short name for reports and tests, e.g. ``"P11"``.
        target: ``"package.module.Class.attribute"``, where the class must define the attribute
            itself, or ``"package.module.function"``, which modules may have imported by its name.
        kind: how the hook joins the target.
        hook: ``"package.module:function"`` of ours; a string, so that the table imports nothing.
        group: which processes apply it, and when.
        why: the symptom without it.
        signature: the target's parameters without annotations, e.g. ``"(self, recv_req)"``;
            empty for `Kind.ATTRIBUTE`; locked.
        relies_on: names that the hook needs the target's source to contain, with spaces between,
            e.g. ``"self._request_dispatcher"``; for `Kind.ATTRIBUTE` the source of the whole class.
        fingerprints: SGLang version -> `source.fingerprint` of each body that was verified;
            locked. The hash decides; the version only says where it was seen.
        diffs: numbers of the files in ``patches/`` that would make this patch unnecessary upstream,
            with spaces between.
        spares: a subclass, ``"package.module.Class"``, whose own target stays SGLang's.
        only_if_imported: never import the target's module just to patch it.
    """

    id: str
    target: str
    kind: Kind
    hook: str
    group: Group
    why: str
    diffs: str
    signature: str = ""
    relies_on: str = ""
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    spares: str = ""
    only_if_imported: bool = False

    @property
    def owner(self) -> str:
        """``"package.module.Class"`` or ``"package.module"``."""
        return self.target.rpartition(".")[0]

    @property
    def module(self) -> str:
        """What `owner` is an attribute of: the class's module, or the module's package."""
        return self.owner.rpartition(".")[0]

    @property
    def attribute(self) -> str:
        return self.target.rpartition(".")[2]


class UseKind(StrEnum):
    """What a use is; a value only has to exist."""

    CLASS = "class"
    FUNCTION = "function"
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class Use:
    """A function, class or value of SGLang that hooks use as it is.

    Attributes:
        target: ``"package.module.function"``, ``"package.module.Class.method"`` or
            ``"package.module.Class"``; methods may be inherited.
        groups: the groups of patches whose hooks need it; empty if only `doctor` checks it.
        signature: of a function or method, as in `Patch`.
        body: the first 16 digits of a function's `source.fingerprint`; empty if any body will do.
        members: of a class: names that it or a base must define, declare, or assign to ``self``
            in any method.
    """

    id: ClassVar[str] = "used"
    """What reports print in the place of a patch's id."""

    target: str
    kind: UseKind
    groups: tuple[Group, ...] = ()
    signature: str = ""
    body: str = ""
    members: tuple[str, ...] = ()


class Aspect(StrEnum):
    """In what respect the installed SGLang differs from a patch or a use."""

    VERSION = "version"
    TARGET = "target"
    SIGNATURE = "signature"
    NAMES = "names relied on"
    MEMBERS = "members"
    BODY = "body"
    MERGED = "what is merged"
    HOOK = "hook"
    APPLICATION = "application"
    OVERRIDE = "override"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One difference, in the words that an operator reads.

    Attributes:
        id: `Patch.id` or `Use.id`; ``"all"`` for the version.
        blocking: False for a changed body, whose hook is still valid as far as can be told, but
            nobody has verified that release; and for a merged diff.
        names: the members that a class lacks.
    """

    id: str
    target: str
    aspect: Aspect
    expected: str
    found: str
    remedy: str
    blocking: bool = True
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return (
            f"{self.id} {self.target}: {self.aspect} differs\n"
            f"    expected: {self.expected}\n"
            f"    found:    {self.found}\n"
            f"    remedy:   {self.remedy}"
        )
