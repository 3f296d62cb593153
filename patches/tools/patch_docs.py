"""The tables of changes in ``docs/patches.md``.

``python -m patches.tools.patch_docs`` renews them after every change of the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap

from patches.tools.upstream import DIRECTORY, Diff, read_series, renewed
from sglang_prefill_ext.patching.spec import Group, Patch
from sglang_prefill_ext.patching.table import PATCHES

PAGE = Path(__file__).parents[2] / "docs" / "patches.md"

_SGLANG = "sglang.srt."
_BORDER = "sglang_prefill_ext.border."

_APPLIED: Mapping[Group, str] = {
    Group.FLAGS: "Always applied, without effect until a flag is used. The other groups need "
    "`--enable-prefill-only`.",
    Group.FRONTEND: "Applied in the tokenizer manager, the HTTP server and `Engine`.",
    Group.SCHEDULER: "Applied in the scheduler of every rank.",
    Group.DETOKENIZER: "Applied in every detokenizer.",
    Group.DP_CONTROLLER: "Applied in the data-parallel controller.",
    Group.CPU: "Applied in the scheduler, on the CPU platform of this package.",
}

_COLUMNS = """\
| | patched | hook | without the patch | diffs for upstream | can go once SGLang has |
|---|---|---|---|---|---|"""


def tables(diffs: Sequence[Diff], patches: Sequence[Patch] = PATCHES) -> str:
    """The changes as Markdown, one table per group."""
    numbered = {diff.number: diff for diff in diffs}
    lines: list[str] = []
    for group in Group:
        if members := [patch for patch in patches if patch.group is group]:
            rows = (_row(patch, numbered) for patch in members)
            lines += [f"## Group `{group}`", "", *wrap(_APPLIED[group], 100), ""]
            lines += [_COLUMNS, *rows, ""]
    return "\n".join(lines).rstrip()


def _row(patch: Patch, numbered: Mapping[str, Diff]) -> str:
    loaded = " Only where its module is loaded already." if patch.only_if_imported else ""
    diffs = [numbered[number] for number in patch.diffs.split()]
    added = [name for diff in diffs for name in diff.adds]
    cells = [
        patch.id,
        f"{patch.kind} `{patch.target.removeprefix(_SGLANG)}`",
        f"`{patch.hook.removeprefix(_BORDER)}`",
        patch.why + loaded,
        ", ".join(f"[{diff.number}](../patches/{diff.name})" for diff in diffs),
        ", ".join(f"`{name.removeprefix(_SGLANG)}`" for name in added),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    PAGE.write_text(renewed(PAGE, tables(read_series(DIRECTORY))), encoding="utf-8")


if __name__ == "__main__":
    main()
