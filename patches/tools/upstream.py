"""Read the diffs in ``patches/`` and their descriptions.

``python -m patches.tools.upstream`` renews the table in ``patches/README.md``, and the names by
which `doctor` finds merged diffs.
"""

from __future__ import annotations

import email.policy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_prefill_ext.patching.merged import DIFFS_LOCK
from sglang_prefill_ext.patching.spec import Patch
from sglang_prefill_ext.patching.table import PATCHES

DIRECTORY = Path(__file__).parents[1]

_COLUMNS = {"Upstream-Status": "upstream", "Targets": "against"}
"""Trailer -> title of its column in the table."""

_MARKED = re.compile(r"(?P<head>.*<!-- begin .*? -->).*(?P<tail><!-- end .*? -->.*)", re.DOTALL)
_FILES = re.compile(r"^--- (\S+)\n\+\+\+ b/(\S+)$", re.MULTILINE)
_TRAILER = re.compile(r"^([A-Z][A-Za-z-]+): (\S.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Diff:
    """One file of ``patches/``, as ``git format-patch`` writes it.

    Attributes:
        name: the file's name, ``"0004-out-of-band-work.patch"``.
        subject: without ``[PATCH]``.
        author: ``"name <address>"``.
        description: the prose between the subject and the trailers.
        trailers: the last paragraph, e.g. ``{"Upstream-Status": "not sent"}``.
        changed: existing files that it changes, as SGLang's repository lays them out.
        added: files that it creates.
    """

    name: str
    subject: str
    author: str
    description: str
    trailers: Mapping[str, str]
    changed: tuple[str, ...]
    added: tuple[str, ...]

    @property
    def number(self) -> str:
        """``"0004"``."""
        return self.name.partition("-")[0]

    @property
    def adds(self) -> list[str]:
        """Dotted names that it adds; a release that has them makes the patches superfluous."""
        return self.trailers.get("Adds", "").split()


def parse(name: str, text: str) -> Diff:
    """Read one patch file; fields that it lacks are empty."""
    message = email.message_from_string(text, policy=email.policy.default)
    body, _, diff = message.get_content().partition("\n---\n")
    description, _, trailers = body.strip().rpartition("\n\n")
    files = _FILES.findall(diff)
    return Diff(
        name=name,
        subject=str(message["Subject"] or "").removeprefix("[PATCH] "),
        author=str(message["From"] or ""),
        description=description,
        trailers=dict(_TRAILER.findall(trailers)),
        changed=tuple(new for old, new in files if old != "/dev/null"),
        added=tuple(new for old, new in files if old == "/dev/null"),
    )


def read_series(directory: Path) -> tuple[Diff, ...]:
    """The diffs that ``series`` names, in its order."""
    names = (directory / "series").read_text(encoding="utf-8").split()
    return tuple(parse(name, (directory / name).read_text(encoding="utf-8")) for name in names)


def table(diffs: Sequence[Diff], patches: Sequence[Patch] = PATCHES) -> str:
    """The diffs as a Markdown table, with the patches that each would make superfluous.

    A trailer that all diffs share stands once above the table; any other has a column.
    """
    values = {name: {diff.trailers.get(name, "") for diff in diffs} for name in _COLUMNS}
    columns = [name for name, found in values.items() if len(found) != 1]
    shared = [f"{_COLUMNS[n]}: {min(values[n])}" for n in _COLUMNS if n not in columns]
    above = [f"All diffs: {', '.join(shared)}.", ""] if shared else []
    titles = ["diff", "subject", "replaces", *(_COLUMNS[name] for name in columns)]
    header = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    return "\n".join([*above, *header, *(_row(diff, patches, columns) for diff in diffs)])


def _row(diff: Diff, patches: Sequence[Patch], columns: Sequence[str]) -> str:
    replaced = [patch.id for patch in patches if diff.number in patch.diffs.split()]
    cells = (
        f"[{diff.number}]({diff.name})",
        diff.subject.replace("|", r"\|"),
        ", ".join(replaced),
        *(diff.trailers.get(trailer, "") for trailer in columns),
    )
    return f"| {' | '.join(cells)} |"


def added(diffs: Sequence[Diff]) -> str:
    """The text of ``diffs.lock.json``: a line for each diff that adds names."""
    lines = [f" {json.dumps(diff.number)}: {json.dumps(diff.adds)}" for diff in diffs if diff.adds]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def renewed(page: Path, rendered: str) -> str:
    """The text of a page, with `rendered` in the place of what is between its markers.

    Raises:
        ValueError: the page does not have the two markers in this order.
    """
    parts = _MARKED.fullmatch(page.read_text(encoding="utf-8"))
    if parts is None:
        raise ValueError(f"{page} lacks a marker: <!-- begin ... --> or <!-- end ... -->")
    return f"{parts['head']}\n\n{rendered}\n\n{parts['tail']}"


def main(directory: Path = DIRECTORY, lock: Path = DIFFS_LOCK) -> None:
    readme = directory / "README.md"
    diffs = read_series(directory)
    readme.write_text(renewed(readme, table(diffs)), encoding="utf-8")
    lock.write_text(added(diffs), encoding="utf-8")


if __name__ == "__main__":
    main()
