"""What hooks use of SGLang as it is: complete, not stale, and checked on the installed one."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_prefill_ext.patching.library_uses import LIBRARY_USES
from sglang_prefill_ext.patching.spec import Use
from sglang_prefill_ext.patching.table import PATCHES
from sglang_prefill_ext.patching.uses import USES

PACKAGE = Path(__file__).parents[2] / "sglang_prefill_ext"
READERS = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): ast.parse(path.read_text())
    for package in ("border", "frontend", "shared_device")
    for path in PACKAGE.rglob(f"{package}/**/*.py")
}
"""The border, and those who are handed SGLang's objects without importing them."""

UNCHECKED = {
    "sglang.srt.entrypoints.openai.protocol.ScoringRequest": "the body of a route, read at start",
    "sglang.srt.plugins.hook_registry.HookType": "an unknown value fails while hooks are applied",
    "sglang.srt.layers.radix_attention.AttentionType": "read at start, which fails without it",
    "sglang.srt.model_executor.forward_batch_info.ForwardMode": "read at start",
    "sglang.srt.platforms": "a module, read when the CPU platform is chosen",
    "sglang.srt.platforms.cpu.CpuDeviceMixin": "a base of the CPU platform, which no hook needs",
    "sglang.srt.platforms.interface.SRTPlatform": "a base of the CPU platform",
    "sglang.srt.platforms.interface.PlatformCapabilities": "made when the CPU platform is chosen",
    "sglang.srt.platforms.interface.PlatformEnum": "read when the CPU platform is chosen",
}
"""What the border imports and no table has, and why that is enough."""

REACHED_AS = {
    "forward": "model",
    "Sampler.forward": "sampler",
    "score_and_pool": "token_indices_to_pool",
    "num_dp_ranks_of": "num_dp_ranks",
}
"""Functions that SGLang calls for us, and the name by which we reach them."""

each_use = pytest.mark.parametrize("use", USES, ids=lambda use: use.id)


def _imports(tree: ast.Module) -> Iterator[str]:
    """Dotted names that a module imports from SGLang."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sglang":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] == "sglang")


def _identifiers(tree: ast.Module) -> set[str]:
    """Every name that a module reads, calls, defines, or passes as a keyword or a string."""
    fields = ("id", "attr", "arg", "name", "value")
    return {str(getattr(node, field, "")) for node in ast.walk(tree) for field in fields}


# The table itself


def test_ids_and_targets_are_unique_and_ids_are_ordered() -> None:
    numbers = [int(use.id.removeprefix("U")) for use in USES]
    assert numbers == sorted(set(numbers))
    assert len({use.target for use in USES}) == len(USES)


@each_use
def test_an_entry_is_a_function_or_a_class(use: Use) -> None:
    assert bool(use.signature) != bool(use.members)
    assert len(set(use.members)) == len(use.members)
    assert use.why


def test_nothing_is_both_changed_and_used() -> None:
    assert {patch.target for patch in PATCHES} & {use.target for use in USES} == set()


# Our own code


def test_every_import_from_sglang_is_checked() -> None:
    functions = {use.target.rpartition(".")[0] for use in USES if use.signature}
    checked = {use.target for use in USES} | functions | {patch.owner for patch in PATCHES}
    imported = {name for tree in READERS.values() for name in _imports(tree)}
    assert imported - checked - UNCHECKED.keys() == set()
    assert UNCHECKED.keys() - imported == set()
    assert UNCHECKED.keys() & {use.target for use in USES} == set()


@each_use
def test_what_is_checked_is_used(use: Use) -> None:
    assert set(use.used_by) <= READERS.keys()
    names = {module: _identifiers(READERS[module]) for module in use.used_by}
    method = ".".join(use.target.split(".")[-2:])
    function = method.partition(".")[2]
    wanted = set(use.members) or {REACHED_AS.get(method, REACHED_AS.get(function, function))}
    assert wanted - set().union(*names.values()) == set()
    assert [module for module, found in names.items() if not wanted & found] == []


@pytest.mark.parametrize("use", LIBRARY_USES, ids=lambda use: use.id)
def test_what_is_called_of_a_library_is_checked_and_has_what_is_passed(use: Use) -> None:
    path = PACKAGE.joinpath(*use.used_by[0].split(".")).with_suffix(".py")
    module, _, function = use.target.rpartition(".")
    tree = ast.parse(path.read_text())
    imported = {
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == module
        for alias in node.names
    }
    assert imported == {use.target}
    (call,) = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == function
    )
    accepted = {word.partition("=")[0] for word in use.signature.strip("()").split(", ")}
    assert {keyword.arg for keyword in call.keywords} <= accepted


# The installed SGLang


def test_every_use_fits(probe: dict[str, Any]) -> None:
    report = json.loads(probe["stock"]["output"])
    assert {use["id"]: use["status"] for use in report["uses"]} == {use.id: "ok" for use in USES}


def test_every_library_that_can_be_imported_fits(probe: dict[str, Any]) -> None:
    """FlashInfer can, without a GPU; sglang-kernel cannot."""
    report = json.loads(probe["stock"]["output"])
    found = {use["id"]: use["status"] for use in report["libraries"]}
    assert found["U331"] == "ok"
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


def test_doctor_reports_a_changed_use(probe: dict[str, Any]) -> None:
    doctor = probe["changed_uses"]["json"]
    report = json.loads(doctor["output"])
    wrong = {use["target"] for use in report["uses"] if use["status"] == "mismatch"}
    names = {target.rpartition(".")[2] for target in wrong}
    assert names == {"should_apply_lm_head_quant_method", "RWLock"}
    assert (doctor["status"], report["ok"]) == (1, False)
