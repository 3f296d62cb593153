"""Check the whole patch table against the installed SGLang and show the result.

Imports SGLang, which takes seconds; starts nothing and needs no GPU.
"""

from __future__ import annotations

import contextlib
import json
import platform
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from sglang_prefill_ext import SUPPORTED_SGLANG
from sglang_prefill_ext.patching import guard
from sglang_prefill_ext.patching.spec import Mismatch, Patch
from sglang_prefill_ext.patching.table import PATCHES

_DISTRIBUTIONS = ("sglang-prefill-ext", "sglang", "torch", "triton")
_STYLES = {"ok": "green", "drift": "yellow", "mismatch": "bold red"}


class Status(StrEnum):
    OK = "ok"
    DRIFT = "drift"  # the body changed in a release nobody verified; the hook still fits
    MISMATCH = "mismatch"


@dataclass(frozen=True, slots=True)
class Entry:
    """One patch, and how the installed SGLang differs from what it expects."""

    patch: Patch
    mismatches: tuple[Mismatch, ...]

    @property
    def status(self) -> Status:
        if any(mismatch.blocking for mismatch in self.mismatches):
            return Status.MISMATCH
        return Status.DRIFT if self.mismatches else Status.OK


@dataclass(frozen=True, slots=True)
class Report:
    """What `diagnose` found.

    Attributes:
        versions: distribution (and ``python``) -> version, None where not installed.
        version_mismatches: empty if the SGLang version is one of `SUPPORTED_SGLANG`.
    """

    versions: dict[str, str | None]
    version_mismatches: tuple[Mismatch, ...]
    entries: tuple[Entry, ...]

    @property
    def ok(self) -> bool:
        """Whether a server with --enable-prefill-only would start."""
        fits = all(entry.status is not Status.MISMATCH for entry in self.entries)
        return fits and not self.version_mismatches

    @property
    def mismatches(self) -> list[Mismatch]:
        return [*self.version_mismatches, *(m for e in self.entries for m in e.mismatches)]

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "supported_sglang": SUPPORTED_SGLANG,
            "versions": self.versions,
            "patches": [
                {
                    "id": entry.patch.id,
                    "target": entry.patch.target,
                    "kind": entry.patch.kind,
                    "group": entry.patch.group,
                    "status": entry.status,
                }
                for entry in self.entries
            ],
            "mismatches": [asdict(mismatch) for mismatch in self.mismatches],
        }


def diagnose(patches: Sequence[Patch] = PATCHES) -> Report:
    """Check the version and every patch; changes nothing."""
    versions = {name: guard.installed_version(name) for name in _DISTRIBUTIONS}
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        # What SGLang's modules say while they are imported is not part of the report.
        warnings.simplefilter("ignore")
        entries = tuple(Entry(patch, tuple(guard.check(patch))) for patch in patches)
    return Report(
        versions={"python": platform.python_version(), **versions},
        version_mismatches=tuple(guard.check_version(versions["sglang"])),
        entries=entries,
    )


def render(report: Report, console: Console) -> None:
    """Print the versions, one line for each patch, and every mismatch in full."""
    versions = ", ".join(f"{k} {v or 'not installed'}" for k, v in report.versions.items())
    console.print(versions, f"supported SGLang: {SUPPORTED_SGLANG}", sep="\n", markup=False)
    table = Table("patch", "status", "kind", "group", Column("target", overflow="fold"))
    for entry in report.entries:
        patch, style = entry.patch, _STYLES[entry.status]
        status = f"[{style}]{entry.status}[/]"
        table.add_row(patch.id, status, patch.kind, patch.group, patch.target)
    console.print(table)
    for mismatch in report.mismatches:
        # Never wrapped or shortened: these lines are searched for and pasted into reports.
        console.print(str(mismatch), markup=False, highlight=False, soft_wrap=True)
    verdict = "would start" if report.ok else "would refuse to start"
    console.print(
        f"A server with --enable-prefill-only {verdict} on this SGLang.",
        style=_STYLES[Status.OK if report.ok else Status.MISMATCH],
        highlight=False,
    )


def main(json_output: bool) -> int:
    """Diagnose, print to standard output, and return the exit status: 1 on a mismatch."""
    with Console(stderr=True).status("Importing SGLang ..."):
        report = diagnose()
    if json_output:
        sys.stdout.write(json.dumps(report.to_json(), indent=2) + "\n")
    else:
        render(report, Console())
    return 0 if report.ok else 1
