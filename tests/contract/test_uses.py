"""The lock of uses agrees with our source and the installed SGLang."""

from __future__ import annotations

import ast
import json
import re
from difflib import unified_diff
from pathlib import Path
from typing import Any

import pytest

from patches.tools import lock
from patches.tools.handed import HANDED, READ_ELSEWHERE
from patches.tools.patch_docs import PAGE
from sglang_prefill_ext.patching import scan
from sglang_prefill_ext.patching.spec import Group, Use, UseKind
from sglang_prefill_ext.patching.table import LIBRARY_USES, PATCHES, USES

PACKAGE = Path(__file__).parents[2] / "sglang_prefill_ext"
MODULES = scan.read_package()
BORDER = {name: names for name, names in MODULES.items() if scan.is_border(name)}
IMPORTED = {target for names in BORDER.values() for target in names.imports}
CLASSES = {use.target: use for use in USES if use.kind is UseKind.CLASS}
STALE = """\
The lock of what is used of SGLang is not what our source and the installed SGLang make of it.
Look at what has changed, and renew it, and the docs with it, by

    make lock

"""


# Our own code


def test_there_is_a_border() -> None:
    """If the border's package had another name than `scan.BORDER`, nothing would be locked."""
    assert len(BORDER) > 10
    importing = {m for m, n in MODULES.items() if any(scan.is_of(i, ["sglang"]) for i in n.imports)}
    assert importing <= BORDER.keys()


def test_every_import_of_the_border_is_locked() -> None:
    """This is checked without the installed SGLang."""
    locked = {use.target for use in USES}
    modules = {target.rpartition(".")[0] for target in locked}
    guarded = {target for target in IMPORTED if scan.is_of(target, scan.GUARDED)}
    assert guarded - locked - modules == set(), STALE


def test_nothing_is_both_changed_and_used() -> None:
    assert {patch.target for patch in PATCHES} & {use.target for use in USES} == set()


# What is kept by hand


@pytest.mark.parametrize("group", HANDED, ids=str)
def test_what_is_handed_cannot_be_seen_in_the_source(group: Group) -> None:
    patches = [patch for patch in PATCHES if patch.group == group and not patch.only_if_imported]
    seen = {patch.owner for patch in patches}
    for hook in {patch.hook.partition(":")[0] for patch in patches}:
        seen.update(*(BORDER[m].imports for m in scan.reached(MODULES, hook) & BORDER.keys()))
    assert set(HANDED[group]) & seen == set()


def test_of_every_class_that_is_handed_something_is_used() -> None:
    owners = {use.target.rpartition(".")[0] for use in USES}
    handed = {target for given in HANDED.values() for target in given}
    assert [t for t in handed & CLASSES.keys() if not CLASSES[t].members and t not in owners] == []


def test_what_is_kept_by_hand_is_in_the_lock() -> None:
    locked = {use.target for use in USES}
    assert {target for given in HANDED.values() for target in given} - locked == set()
    assert READ_ELSEWHERE - CLASSES.keys() == set()


def test_a_reason_is_for_one_use() -> None:
    section = PAGE.read_text().split("## Used, not changed")[1].split("\n## ")[0]
    names = re.findall(r"^\| `(\S+)` \| .+ \|$", section, re.MULTILINE)
    locked = {use.target.removeprefix("sglang.srt.") for use in (*USES, *LIBRARY_USES)}
    assert names
    assert sorted({*names} & locked) == sorted(names)


@pytest.mark.parametrize(
    "use", [use for use in LIBRARY_USES if use.signature], ids=lambda use: use.target
)
def test_what_is_called_of_a_library_has_what_is_passed(use: Use) -> None:
    owner, _, function = use.target.rpartition(".")
    of_a_class = any(other.target == owner for other in LIBRARY_USES)
    (module,) = scan.users(MODULES, owner if of_a_class else use.target)
    tree = ast.parse(PACKAGE.joinpath(*module.split(".")).with_suffix(".py").read_text())
    called = owner.rpartition(".")[2] if function == "__init__" else function
    (call,) = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == called
    )
    accepted = {word.partition("=")[0] for word in use.signature.strip("()").split(", ")}
    assert {keyword.arg for keyword in call.keywords} <= accepted


# The installed SGLang


def test_the_lock_is_up_to_date(probe: dict[str, Any]) -> None:
    written, made = lock.USES_LOCK.read_text().splitlines(), probe["lock"].splitlines()
    diff = unified_diff(written, made, "locked", "used", n=0, lineterm="")
    assert written == made, STALE + "\n".join(diff)


def test_every_use_fits(probe: dict[str, Any]) -> None:
    report = json.loads(probe["stock"]["output"])
    found = {use["target"]: use["status"] for use in report["uses"]}
    assert found == {use.target: "ok" for use in USES}


def test_every_library_that_can_be_imported_fits(probe: dict[str, Any]) -> None:
    """Without a GPU, FlashInfer can be imported; sglang-kernel cannot."""
    report = json.loads(probe["stock"]["output"])
    found = {use["target"]: use["status"] for use in report["libraries"]}
    assert found["flashinfer.BatchPrefillWithRaggedKVCacheWrapper"] == "ok"
    assert set(found.values()) == {"ok"}


def test_a_changed_use_is_refused_and_nothing_is_changed(probe: dict[str, Any]) -> None:
    seen = probe["changed_uses"]
    for line in (
        "sglang.srt.layers.logits_processor.should_apply_lm_head_quant_method: signature differs",
        "    expected: (lm_head, quant_method)",
        "    found:    (head)",
        "sglang.srt.utils.aio_rwlock.RWLock: members differs",
        "    expected: reader_lock",
        "    found:    lacks reader_lock",
        "    remedy:   install a supported release",
    ):
        assert line in seen["refusal"]
    assert seen["changed"] == []


def test_doctor_reports_a_changed_use_and_who_uses_it(probe: dict[str, Any]) -> None:
    doctor = probe["changed_uses"]["json"]
    report = json.loads(doctor["output"])
    changed = {use["target"].rpartition(".")[2]: use for use in report["uses"]}
    changed = {name: use for name, use in changed.items() if use["status"] != "ok"}
    assert {name: use["status"] for name, use in changed.items()} == {
        "should_apply_lm_head_quant_method": "mismatch",
        "RWLock": "mismatch",
        "_qwen3_rerank_score": "drift",
    }
    assert all(use["used_by"] for use in changed.values())
    (body,) = (each for each in report["mismatches"] if each["aspect"] == "body")
    assert body["target"].endswith("_qwen3_rerank_score")
    assert not body["blocking"]
    assert "renewing the lock" in body["remedy"]
    assert (doctor["status"], report["ok"]) == (1, False)
