"""Compare the tables of changes and uses with the installed SGLang, and show the result.

This imports SGLang, which takes seconds. It starts nothing and needs no GPU.
"""

from __future__ import annotations

import contextlib
import json
import platform
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from sglang_prefill_ext import SUPPORTED_SGLANG
from sglang_prefill_ext.patching import guard, scan
from sglang_prefill_ext.patching.merged import check_merged, load_added
from sglang_prefill_ext.patching.spec import Aspect, Mismatch, Patch, Use
from sglang_prefill_ext.patching.table import LIBRARY_USES, PATCHES, USES

_DISTRIBUTIONS = ("sglang-prefill-ext", "sglang", "torch", "triton")
_STYLES = {"ok": "green", "drift": "yellow", "merged": "yellow", "mismatch": "bold red"}


class Status(StrEnum):
    OK = "ok"
    DRIFT = "drift"  # the body changed in a release nobody verified; the hook still fits
    MERGED = "merged"  # SGLang has a diff in whose place the patch is
    MISMATCH = "mismatch"


@dataclass(frozen=True, slots=True)
class Entry:
    """One patch or use, and how the installed SGLang differs from what it expects.

    Attributes:
        used_by: for a use, our modules that use it. For a class that hooks get without an
            import, the modules that read its name or a member that it lacks.
    """

    checked: Patch | Use
    mismatches: tuple[Mismatch, ...]
    used_by: tuple[str, ...] = ()

    @property
    def status(self) -> Status:
        if any(mismatch.blocking for mismatch in self.mismatches):
            return Status.MISMATCH
        if any(mismatch.aspect is Aspect.MERGED for mismatch in self.mismatches):
            return Status.MERGED
        return Status.DRIFT if self.mismatches else Status.OK

    def to_json(self) -> dict[str, Any]:
        checked = self.checked
        what: dict[str, Any] = {"target": checked.target, "status": self.status}
        if isinstance(checked, Patch):
            return {"id": checked.id, "group": checked.group, "kind": checked.kind, **what}
        return {**what, "groups": checked.groups, "used_by": self.used_by}


@dataclass(frozen=True, slots=True)
class Report:
    """What `diagnose` found.

    Attributes:
        versions: distribution (and ``python``) -> version, None where not installed.
        version_mismatches: empty if the SGLang version is one of `SUPPORTED_SGLANG`.
        libraries: uses of attention libraries that can be imported here; a server starts
            without them.
    """

    versions: dict[str, str | None]
    version_mismatches: tuple[Mismatch, ...]
    patches: tuple[Entry, ...]
    uses: tuple[Entry, ...]
    libraries: tuple[Entry, ...]

    @property
    def entries(self) -> tuple[Entry, ...]:
        return self.patches + self.uses + self.libraries

    @property
    def ok(self) -> bool:
        """Whether a server with --enable-prefill-only would start."""
        fits = all(entry.status is not Status.MISMATCH for entry in self.entries)
        return fits and not self.version_mismatches

    @property
    def mismatches(self) -> list[Mismatch]:
        return [*self.version_mismatches, *(m for e in self.entries for m in e.mismatches)]

    def to_json(self) -> dict[str, Any]:
        of_release = {"supported_sglang": SUPPORTED_SGLANG, "versions": self.versions}
        checked = {"patches": self.patches, "uses": self.uses, "libraries": self.libraries}
        listed = {name: [each.to_json() for each in entries] for name, entries in checked.items()}
        mismatches = [asdict(mismatch) for mismatch in self.mismatches]
        return {"ok": self.ok, **of_release, **listed, "mismatches": mismatches}


def diagnose(
    patches: Sequence[Patch] = PATCHES,
    uses: Sequence[Use] = USES,
    libraries: Sequence[Use] = LIBRARY_USES,
) -> Report:
    """Check the version, every patch, every use and the libraries; changes nothing."""
    versions = {name: guard.installed_version(name) for name in _DISTRIBUTIONS}
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        # What SGLang's modules print while they are imported is not part of the report.
        warnings.simplefilter("ignore")
        added = load_added()
        patched = tuple(
            Entry(patch, (*guard.check(patch), *check_merged(patch, added))) for patch in patches
        )
        used = tuple(_entry(use, guard.check_use(use) or guard.check_body(use)) for use in uses)
        found = [(use, guard.check_library(use)) for use in libraries]
    return Report(
        versions={"python": platform.python_version(), **versions},
        version_mismatches=tuple(guard.check_version(versions["sglang"])),
        patches=patched,
        uses=used,
        libraries=tuple(_entry(use, wrong) for use, wrong in found if wrong is not None),
    )


def _entry(use: Use, mismatches: Sequence[Mismatch]) -> Entry:
    names = [name for mismatch in mismatches for name in mismatch.names]
    return Entry(use, tuple(mismatches), scan.users(scan.read_package(), use.target, names))


def render(report: Report, console: Console, *, everything: bool = False) -> None:
    """Print the versions, what does not fit, and whether a server would start.

    Args:
        everything: list every patch and use instead of those that differ.
    """
    versions = ", ".join(f"{k} {v or 'not installed'}" for k, v in report.versions.items())
    console.print(versions, f"supported SGLang: {SUPPORTED_SGLANG}", sep="\n", markup=False)
    _render_entries("patch", "kind", report.patches, console, everything)
    _render_entries("used, not changed", "used by", report.uses, console, everything)
    _render_entries("attention library", "used by", report.libraries, console, everything)
    if report.mismatches:
        # Never wrapped or shortened: these lines are searched for and pasted into reports.
        said = guard.told(report.mismatches)
        console.print(said, markup=False, highlight=False, soft_wrap=True)
    outcome = "would start" if report.ok else "would refuse to start"
    console.print(
        f"A server with --enable-prefill-only {outcome} on this SGLang.",
        style=_STYLES[Status.OK if report.ok else Status.MISMATCH],
        highlight=False,
    )


def _render_entries(
    title: str, detail: str, entries: Sequence[Entry], console: Console, everything: bool
) -> None:
    counts = Counter(entry.status for entry in entries)
    shown = ", ".join(f"{counts[status]} {status}" for status in Status if counts[status])
    console.print(f"{title}: {shown or 'none can be imported here'}", highlight=False)
    listed = [entry for entry in entries if everything or entry.status is not Status.OK]
    table = Table(title, "status", detail, "group", Column("target", overflow="fold"))
    for entry in listed:
        checked, style = entry.checked, _STYLES[entry.status]
        if isinstance(checked, Patch):
            what, groups = str(checked.kind), [checked.group]
        else:
            what, groups = "\n".join(entry.used_by), [*checked.groups]
        status = f"[{style}]{entry.status}[/]"
        table.add_row(checked.id, status, what, "\n".join(groups), checked.target)
    if listed:
        console.print(table)


def main(*, json_output: bool, everything: bool) -> int:
    """Diagnose, print to standard output, and return the exit status: 1 on a mismatch."""
    with Console(stderr=True).status("Importing SGLang ..."):
        report = diagnose()
    if json_output:
        sys.stdout.write(json.dumps(report.to_json(), indent=2) + "\n")
    else:
        render(report, Console(), everything=everything)
    return 0 if report.ok else 1
