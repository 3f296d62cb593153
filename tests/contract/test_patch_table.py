"""The patch table against the installed SGLang, the upstream diffs and its own documentation."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from patches.tools import patch_docs as docs
from patches.tools import upstream
from sglang_prefill_ext import SUPPORTED_SGLANG
from sglang_prefill_ext.patching.spec import Group, Kind, Patch
from sglang_prefill_ext.patching.table import PATCHES

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "sglang_prefill_ext"
DIFFS = upstream.read_series(upstream.DIRECTORY)
each_patch = pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.id)


# The table itself


def test_ids_and_targets_are_unique_and_ids_are_ordered() -> None:
    ids = [patch.id for patch in PATCHES]
    assert ids == sorted(set(ids))
    assert len({patch.target for patch in PATCHES}) == len(PATCHES)


@each_patch
def test_an_entry_is_complete(patch: Patch) -> None:
    assert patch.why.endswith(".")
    assert patch.relies_on
    assert patch.diffs
    if patch.kind is not Kind.ATTRIBUTE:
        assert patch.signature
        assert patch.fingerprints


def test_the_documentation_is_up_to_date() -> None:
    written = docs.PAGE.read_text()
    assert written == upstream.renewed(docs.PAGE, docs.tables(DIFFS)), docs.__doc__
    assert f"`{SUPPORTED_SGLANG}`" in written


# The upstream diffs


def test_every_diff_named_by_a_patch_is_in_the_series() -> None:
    diffs = {number for patch in PATCHES for number in patch.diffs.split()}
    assert diffs <= {diff.number for diff in DIFFS}


@each_patch
def test_the_diffs_add_what_makes_the_patch_superfluous(patch: Patch) -> None:
    for diff in DIFFS:
        if diff.number in patch.diffs.split():
            text = (upstream.DIRECTORY / diff.name).read_text()
            added = "\n".join(line for line in text.splitlines() if line.startswith("+"))
            assert diff.adds
            for name in diff.adds:
                assert f"def {name.rpartition('.')[2]}(" in added


# The installed SGLang


def test_every_target_fits_and_every_body_is_known(probe: dict[str, Any]) -> None:
    report = json.loads(probe["stock"]["output"])
    assert report["mismatches"] == []
    assert {entry["id"]: entry["status"] for entry in report["patches"]} == {
        patch.id: "ok" for patch in PATCHES
    }
    assert probe["stock"]["status"] == 0


def test_an_installed_but_unused_plugin_has_only_the_flags(probe: dict[str, Any]) -> None:
    flags = {patch.id for patch in PATCHES if patch.group is Group.FLAGS}
    optional = {patch.id for patch in PATCHES if patch.only_if_imported}
    assert set(probe["flags"]["applied"]) in (flags, flags - optional)
    heavy = ("sglang.srt.managers.", "sglang.srt.entrypoints.", "sglang.srt.model_executor.")
    assert [name for name in probe["flags"]["imported"] if name.startswith(heavy)] == []


def test_flags_of_another_plugin_on_the_same_target_survive(probe: dict[str, Any]) -> None:
    """SGLang's dependency smg-grpc-servicer hooks `ServerArgs.add_cli_args` too."""
    assert {"--enable-prefill-only", "--servicer-impl"} <= set(probe["flags"]["options"])


def test_everything_applies_without_drift(probe: dict[str, Any]) -> None:
    applied = {s["id"]: (s["applied"], s["drift"]) for s in probe["everything"]["states"]}
    assert applied == {patch.id: (True, False) for patch in PATCHES}


def test_no_patch_has_become_superfluous(probe: dict[str, Any]) -> None:
    assert probe["everything"]["merged"] == []


@each_patch
def test_the_hook_takes_the_arguments_of_its_target(probe: dict[str, Any], patch: Patch) -> None:
    assert probe["everything"]["hook_problems"][patch.id] == ""


# A changed SGLang


def test_doctor_reports_a_changed_signature_and_missing_names(probe: dict[str, Any]) -> None:
    changed = probe["changed"]
    assert changed["text"]["status"] == changed["json"]["status"] == 1
    for line in (
        "P11 sglang.srt.managers.scheduler.Scheduler.get_next_batch_to_run: signature differs",
        "    expected: (self, running_batch, last_batch)",
        "    found:    (self, running_batch)",
        "P13 sglang.srt.managers.scheduler.Scheduler.abort_request: names relied on differs",
        "    found:    not in the source: recv_req.abort_all, recv_req.rid",
        "    remedy:   install a supported release",
    ):
        assert line in changed["text"]["output"]


def test_doctor_calls_a_changed_body_drift(probe: dict[str, Any]) -> None:
    report = json.loads(probe["changed"]["json"]["output"])
    status = {entry["id"]: entry["status"] for entry in report["patches"]}
    expected = {"P11": "mismatch", "P12": "drift", "P13": "mismatch"}
    assert status == {patch.id: "ok" for patch in PATCHES} | expected


def test_a_changed_sglang_is_refused_and_left_alone(probe: dict[str, Any]) -> None:
    changed = probe["changed"]
    assert "P11 sglang.srt.managers.scheduler.Scheduler.get_next_batch_to_run" in changed["refusal"]
    assert "P13 sglang.srt.managers.scheduler.Scheduler.abort_request" in changed["refusal"]
    assert changed["changed"] == []


def test_doctor_tells_what_a_merged_diff_makes_superfluous(probe: dict[str, Any]) -> None:
    merged = probe["merged"]
    assert merged["text"]["status"] == merged["json"]["status"] == 0
    assert "patch: 52 ok, 2 merged" in merged["text"]["output"]
    for line in (
        "Scheduler.init_request_dispatcher: what is merged differs",
        "    found:    merged: 0030, by "
        "sglang.srt.managers.scheduler.Scheduler._refuse_unusable_embeds",
        "    remedy:   remove from sglang_prefill_ext.border.scheduler.scheduler_hooks:"
        "attach_runtime what is merged, or call it by that; the rest is in place of "
        "0003 0004",
        "    remedy:   remove the patch, and sglang_prefill_ext.border.scheduler.stock_requests:"
        "keep_turns, or call it by what is merged",
    ):
        assert line in merged["text"]["output"]
    report = json.loads(merged["json"]["output"])
    assert report["ok"]
    found = {entry["id"] for entry in report["patches"] if entry["status"] == "merged"}
    assert found == {"P10", "P76"}


# Our own code


def _trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text())


def _sglang_names(tree: ast.Module) -> set[str]:
    """Names that a module binds by importing from SGLang."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sglang":
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            bound = ((alias.name, alias.asname) for alias in node.names)
            names |= {alias or name.split(".")[0] for name, alias in bound if name[:6] == "sglang"}
    return names


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _changes(tree: ast.Module) -> Iterator[str]:
    """Statements that set an attribute of something imported from SGLang, or of anything by a
    name that is not one of our own attributes on a live object (a constant ``..ATTRIBUTE``)."""
    foreign = _sglang_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("setattr", "delattr"):
                ours = isinstance(node.args[1], ast.Name) and "ATTRIBUTE" in node.args[1].id
                if not ours or _root(node.args[0]) in foreign:
                    yield ast.unparse(node)
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete):
            targets = [node.target] if hasattr(node, "target") else node.targets
            for target in targets:
                if not isinstance(target, ast.Name) and _root(target) in foreign:
                    yield ast.unparse(node)


def test_only_the_engine_sets_attributes_of_sglang() -> None:
    changing = {name for name, tree in _trees() if list(_changes(tree))}
    assert changing == {"border/patches.py"}


def test_only_one_module_touches_the_hook_registry() -> None:
    words = {"HookRegistry", "plugin_hook", "apply_hooks", "_wrap_fn"}
    using = {
        name
        for name, tree in _trees()
        for node in ast.walk(tree)
        if words & {getattr(node, "id", ""), getattr(node, "attr", ""), getattr(node, "name", "")}
    }
    assert using == {"border/patches.py"}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("from sglang.a import B\nB.c = 1", 1),
        ("from sglang.a import B\nB.c.d += 1", 1),
        ("import sglang\nsglang.a.B.c = 1", 1),
        ("from sglang.a import B\nsetattr(B, ATTRIBUTE, 1)", 1),
        ("setattr(x, 'step', 1)", 1),
        ("setattr(x, ATTRIBUTE, 1)\nself.a = 1\nB = 2", 0),
        ("from sglang.a import B\nb = B()\nb.c = B.d", 0),
    ],
)
def test_the_search_for_changes_finds_them(source: str, count: int) -> None:
    assert len(list(_changes(ast.parse(source)))) == count
