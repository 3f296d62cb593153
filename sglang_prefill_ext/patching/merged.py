"""Which of our diffs for SGLang the installed release has; patches in their place can go.

``diffs.lock.json`` has the names that each diff adds; `patches.tools.upstream` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sglang_prefill_ext.patching import source
from sglang_prefill_ext.patching.guard import differs
from sglang_prefill_ext.patching.spec import Aspect, Mismatch, Patch

DIFFS_LOCK = Path(__file__).with_name("diffs.lock.json")


def load_added(path: Path = DIFFS_LOCK) -> dict[str, list[str]]:
    """Read the lock: number of a diff -> dotted names that only a merged diff provides."""
    added: dict[str, list[str]] = json.loads(path.read_text())
    return added


def check_merged(patch: Patch, added: Mapping[str, Sequence[str]]) -> list[Mismatch]:
    """Find whether SGLang has diffs in whose place a patch is; imports their modules.

    Returns:
        At most one difference, not blocking: until it is removed, the hook does what SGLang does.
    """
    names = {diff: [*filter(_exists, added.get(diff, ()))] for diff in patch.diffs.split()}
    merged = [diff for diff in names if names[diff]]
    if not merged:
        return []
    rest = [diff for diff in names if not names[diff]]
    remedy = f"remove the patch, and {patch.hook}, or call it by what is merged"
    if rest:
        remedy = (
            f"remove from {patch.hook} what is merged, or call it by that; the rest is in place of "
            f"{' '.join(rest)}"
        )
    found = f"merged: {' '.join(merged)}, by {', '.join(n for diff in merged for n in names[diff])}"
    expected = f"not merged: {patch.diffs}"
    return [replace(differs(patch, Aspect.MERGED, expected, found, remedy), blocking=False)]


def _exists(name: str) -> bool:
    try:
        source.find(name)
    except Exception:  # importing SGLang can raise anything
        return False
    return True
