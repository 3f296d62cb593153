"""The lock for a stand-in for SGLang, and for a changed stand-in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from patches.tools import lock
from sglang_prefill_ext.patching import guard, scan
from sglang_prefill_ext.patching.scan import BORDER, PACKAGE
from sglang_prefill_ext.patching.spec import Aspect, Group, Use, UseKind
from tests.unit.patching.stub_sglang import MODULE, OWNER, UPSTREAM, known_body, step_patch

pytestmark = pytest.mark.usefixtures("upstream")

HOOKS = f"""
from {MODULE} import Message, wait
from {PACKAGE}.pure import read


def around(original, scheduler, batch):
    scheduler.queue.append(batch)
    scheduler.idle()
    scheduler.step(batch)
    wait(1, depth=2)
    read(scheduler)
"""
PURE = "def read(anything):\n    return anything.visits\n"
PATCH = step_patch(hook=f"{BORDER}.hooks:around")


def modules(hooks: str = HOOKS) -> scan.Modules:
    return {f"{BORDER}.hooks": scan.read(hooks), f"{PACKAGE}.pure": scan.read(PURE)}


def build(hooks: str = HOOKS, **arguments: Any) -> dict[str, Use]:
    uses = lock.build(modules(hooks), [PATCH], **({"handed": {}} | arguments))
    return {use.target: use for use in uses}


# What is found


def test_what_is_imported_is_found_and_what_of_a_changed_class_is_read() -> None:
    uses = build()
    assert {target: use.kind for target, use in uses.items()} == {
        OWNER: UseKind.CLASS,
        f"{OWNER}.idle": UseKind.FUNCTION,
        f"{MODULE}.Message": UseKind.CLASS,
        f"{MODULE}.wait": UseKind.FUNCTION,
    }
    assert uses[OWNER].members == ("depth", "queue")  # a keyword may mean a field
    assert uses[f"{MODULE}.wait"].signature == "(timeout_s, *, quietly=False)"
    assert uses[f"{OWNER}.idle"].signature == "(self)"
    assert all(use.body for use in uses.values() if use.kind is UseKind.FUNCTION)


def test_what_is_changed_is_not_also_used() -> None:
    assert PATCH.target not in build()
    inherited = step_patch(target=f"{MODULE}.Base.inherited", hook=PATCH.hook)
    source = HOOKS + "    scheduler.inherited()\n"
    assert f"{OWNER}.inherited" in build(source)
    uses = lock.build(modules(source), [PATCH, inherited], {})
    assert f"{OWNER}.inherited" not in {use.target for use in uses}


def test_a_use_belongs_to_the_hooks_that_reach_it() -> None:
    frontend = step_patch(group=Group.FRONTEND, hook=PATCH.hook, target=f"{OWNER}.score")
    both = lock.build(modules(), [PATCH, frontend], {})
    assert {use.groups for use in both} == {(Group.FRONTEND, Group.SCHEDULER)}
    nobody = step_patch(hook=f"{PACKAGE}.pure:read")
    uses = {use.target: use.groups for use in lock.build(modules(), [nobody], {})}
    assert uses[f"{MODULE}.wait"] == ()
    assert uses[OWNER] == (Group.SCHEDULER,)


def test_what_is_handed_is_looked_up_for_its_group() -> None:
    handed = {Group.DETOKENIZER: (f"{MODULE}.Base", f"{MODULE}.LIMIT")}
    uses = build(handed=handed)
    assert uses[f"{MODULE}.Base"] == Use(
        f"{MODULE}.Base", UseKind.CLASS, (Group.DETOKENIZER,), members=("depth",)
    )
    assert uses[f"{MODULE}.LIMIT"].kind is UseKind.VALUE


def test_only_what_is_handed_on_is_read_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "visits" not in build()[OWNER].members
    monkeypatch.setattr(lock, "READ_ELSEWHERE", {OWNER})
    assert "visits" in build()[OWNER].members


def test_of_a_module_is_used_what_is_read_there() -> None:
    uses = build("from sglang import managers\nmanagers.wait(1)\nmanagers.Message")
    assert uses.keys() == {OWNER, f"{MODULE}.wait", f"{MODULE}.Message"}


@pytest.mark.parametrize("use", ["Scheduler()", "class Ours(Scheduler): ...", "Scheduler.queue"])
def test_the_constructor_of_what_is_made_or_derived_from_is_used(use: str) -> None:
    uses = build(f"from {MODULE} import Scheduler\n{use}")
    assert (f"{OWNER}.__init__" in uses) is ("queue" not in use)


def test_what_is_imported_and_does_not_exist_is_an_error() -> None:
    with pytest.raises(AttributeError, match="leap"):
        build(f"from {MODULE} import leap")


def test_what_is_called_of_a_library_has_a_signature_and_no_body(
    load_upstream: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(lock, "GUARDED", ())
    monkeypatch.setattr(lock, "LIBRARIES", ("sglang",))
    use = Use(f"{MODULE}.wait", UseKind.FUNCTION, signature="(timeout_s, *, quietly=False)")
    source = f"from {MODULE} import wait"
    load_upstream(UPSTREAM)
    assert lock.build(modules(source), [], {}) == [use]
    load_upstream("")  # stands for one that was built for another device
    old = tmp_path / "lock.json"
    old.write_text(lock.dump([use]))
    assert lock.build(modules(source), [], {}, old) == [use]


# The file


def test_a_lock_is_read_as_it_was_written(tmp_path: Path) -> None:
    uses = build()
    path = tmp_path / "lock.json"
    path.write_text(lock.dump(uses.values()))
    assert lock.load_uses(path) == tuple(uses[target] for target in sorted(uses))


def test_a_lock_has_a_line_a_use_in_the_order_of_the_targets() -> None:
    uses = [*build().values()]
    text = lock.dump(uses)
    assert text == lock.dump(reversed(uses))
    lines = [line.strip().partition('"')[2].partition('"')[0] for line in text.splitlines()[1:-1]]
    assert lines == sorted(json.loads(text)) == sorted(use.target for use in uses)


@pytest.mark.parametrize("text", ["", "<<<<<<< ours\n{}", "[]"])
def test_what_is_no_lock_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lock.json"
    path.write_text(text)
    with pytest.raises((ValueError, AttributeError)):
        lock.load_uses(path)


def test_what_is_changed_is_locked_as_it_is_and_as_it_was(
    upstream: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "installed_version", lambda: "0.5.23")
    older = {"0.5.22": "0" * 64}
    attribute = step_patch(id="T2", target=f"{OWNER}.message_class")
    locked = json.loads(lock.changed([step_patch(signature="", fingerprints=older), attribute]))
    known = {"signature": PATCH.signature, "fingerprints": older | known_body(upstream)}
    assert locked == {"T1": known}


# A changed SGLang


CHANGES: Mapping[str, tuple[str, str, str, Aspect]] = {
    "member": ("self.queue = []", "self.waiting = []", OWNER, Aspect.MEMBERS),
    "signature": ("quietly=False", "loudly=False", f"{MODULE}.wait", Aspect.SIGNATURE),
    "method": ("def idle(self)", "def idle(self, long)", f"{OWNER}.idle", Aspect.SIGNATURE),
    "body": ("return timeout_s, quietly", "return ()", f"{MODULE}.wait", Aspect.BODY),
    "name": ("class Message", "class Messages", f"{MODULE}.Message", Aspect.TARGET),
    "kind": ("def wait", "class wait: ...\ndef _wait", f"{MODULE}.wait", Aspect.TARGET),
}


@pytest.mark.parametrize(("old", "new", "target", "aspect"), CHANGES.values(), ids=CHANGES)
def test_a_change_of_what_is_used_is_found(
    load_upstream: Callable[[str], ModuleType], old: str, new: str, target: str, aspect: Aspect
) -> None:
    load_upstream(UPSTREAM)
    uses = build()
    text = UPSTREAM.replace("message_class = Message\n", "message_class = None\n")
    load_upstream(text)
    assert [guard.check_use(use) or guard.check_body(use) for use in uses.values()] == [[]] * 4
    assert old in text
    load_upstream(text.replace(old, new))
    found = [m for use in uses.values() for m in guard.check_use(use) or guard.check_body(use)]
    assert [(mismatch.target, mismatch.aspect) for mismatch in found] == [(target, aspect)]
    assert found[0].remedy
    assert found[0].blocking is (aspect is not Aspect.BODY)
