from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from sglang_prefill_ext import SUPPORTED_SGLANG
from sglang_prefill_ext.patching import guard
from sglang_prefill_ext.patching.source import fingerprint
from sglang_prefill_ext.patching.spec import Aspect, Kind, Mismatch, Use, UseKind
from tests.unit.patching.stub_sglang import (
    HOOKS,
    MODULE,
    OWNER,
    UPSTREAM,
    attribute_patch,
    known_body,
    scheduler_use,
    step_patch,
    wait_use,
)

pytestmark = pytest.mark.usefixtures("upstream")

WAIT_BODY = fingerprint("def wait(timeout_s, *, quietly=False):\n    return timeout_s, quietly\n")[
    :16
]


def only(mismatches: list[Mismatch], aspect: Aspect) -> Mismatch:
    assert [mismatch.aspect for mismatch in mismatches] == [aspect]
    assert mismatches[0].remedy
    return mismatches[0]


def test_a_patch_that_fits_has_no_mismatch(upstream: ModuleType) -> None:
    assert guard.check(step_patch(fingerprints=known_body(upstream))) == []


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("sglang.nowhere.Scheduler.step", "ModuleNotFoundError"),
        ("sglang.managers.Nobody.step", "Nobody"),
        (f"{OWNER}.leap", "no such attribute"),
        (f"{OWNER}.inherited", "inherited from another class"),
        (f"{OWNER}.message_class", "type"),
    ],
)
def test_a_target_that_cannot_be_wrapped(target: str, found: str) -> None:
    mismatch = only(guard.check(step_patch(target=target)), Aspect.TARGET)
    assert found in mismatch.found
    assert mismatch.blocking


def test_a_changed_signature_names_both() -> None:
    mismatch = only(guard.check(step_patch(signature="(self, batch)")), Aspect.SIGNATURE)
    assert (mismatch.expected, mismatch.found) == ("(self, batch)", "(self, batch, last=None)")
    assert mismatch.blocking


def test_a_missing_name_is_named() -> None:
    patch = step_patch(relies_on="self.queue self.waiting")
    mismatch = only(guard.check(patch), Aspect.NAMES)
    assert "self.waiting" in mismatch.found
    assert "self.queue" not in mismatch.found
    assert mismatch.blocking


@pytest.mark.parametrize("kind", [Kind.BEFORE, Kind.AFTER, Kind.AROUND])
def test_a_changed_body_under_a_hook_is_only_reported(
    load_upstream: Callable[[str], ModuleType], kind: Kind
) -> None:
    known = known_body(load_upstream(UPSTREAM))
    load_upstream(UPSTREAM.replace('f"stock {batch}"', 'f"new {batch}"'))
    mismatch = only(guard.check(step_patch(kind=kind, fingerprints=known)), Aspect.BODY)
    assert not mismatch.blocking
    assert "0.5.23" in mismatch.expected


def test_a_changed_comment_is_no_change(load_upstream: Callable[[str], ModuleType]) -> None:
    known = known_body(load_upstream(UPSTREAM))
    load_upstream(UPSTREAM.replace("# a comment", "# another one"))
    assert guard.check(step_patch(fingerprints=known)) == []


def test_an_attribute_is_read_by_its_class() -> None:
    assert guard.check(attribute_patch()) == []


@pytest.mark.parametrize(
    ("hook", "remedy"),
    [
        (f"{HOOKS}:missing", "install a supported release"),
        ("sglang_prefill_ext.nowhere:hook", "reinstall sglang-prefill-ext"),
        (f"{HOOKS}:NOT_CALLABLE", "reinstall sglang-prefill-ext"),
    ],
)
def test_a_hook_that_cannot_be_used(hook: str, remedy: str) -> None:
    mismatch = only(guard.check(step_patch(hook=hook)), Aspect.HOOK)
    assert hook in mismatch.expected
    assert remedy in mismatch.remedy


def test_an_error_of_the_machine_is_told_once_and_is_no_other_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "/no/home")

    monkeypatch.setattr(guard.importlib, "import_module", fail)
    monkeypatch.setattr(guard.pkgutil, "resolve_name", fail)
    monkeypatch.setattr(guard.source, "find", fail)
    found = guard.check_all([step_patch(), step_patch(id="P91")], [wait_use(), scheduler_use()])
    assert len(found) == 6
    said = guard.told([*found, *guard.check_version("1.0")])
    assert said.count("'/no/home'") == 1
    assert "SGLang itself cannot be imported\n    and 5 others, for the same reason\n" in said
    assert said.count("install a supported release") == 1, "that of the version"


def test_a_target_wrapped_by_someone_else_is_still_read(
    upstream: ModuleType, registry: Any
) -> None:
    known = known_body(upstream)
    registry.register(f"{OWNER}.step", lambda result, *_args: result)
    registry.apply_hooks()
    assert guard.check(step_patch(fingerprints=known)) == []


@pytest.mark.parametrize(
    "use",
    [
        scheduler_use(members=("message_class", "queue", "inherited", "visits", "depth")),
        wait_use(),
        wait_use(target=f"{OWNER}.create", signature="(cls, name)"),
        wait_use(target=f"{OWNER}.parse", signature="(text)"),
        wait_use(target=f"{OWNER}.inherited", signature="(self)"),
        wait_use(target=f"{MODULE}.LIMIT", kind=UseKind.VALUE),
    ],
    ids=["class", "function", "class-method", "static-method", "inherited-method", "value"],
)
def test_a_use_that_fits_has_no_mismatch(use: Use) -> None:
    assert guard.check_use(use) == []


def test_a_missing_member_is_named() -> None:
    use = scheduler_use(members=("queue", "waiting", "step", "sleeping"))
    mismatch = only(guard.check_use(use), Aspect.MEMBERS)
    assert (mismatch.id, mismatch.target) == ("used", OWNER)
    assert mismatch.names == ("waiting", "sleeping")
    assert mismatch.expected == "queue, waiting, step, sleeping"
    assert mismatch.found == "lacks waiting, sleeping"
    assert mismatch.blocking


def test_a_changed_signature_of_a_use_names_both() -> None:
    mismatch = only(guard.check_use(wait_use(signature="(timeout_s)")), Aspect.SIGNATURE)
    assert mismatch.expected == "(timeout_s)"
    assert mismatch.found == "(timeout_s, *, quietly=False)"
    assert mismatch.blocking


def test_a_changed_body_of_a_use_is_found_and_refuses_nothing(
    load_upstream: Callable[[str], ModuleType],
) -> None:
    use = wait_use(body=WAIT_BODY)
    load_upstream(UPSTREAM.replace("return timeout_s, quietly", "return quietly, timeout_s"))
    mismatch = only(guard.check_body(use), Aspect.BODY)
    assert mismatch.target == f"{MODULE}.wait"
    assert WAIT_BODY[:12] in mismatch.expected
    assert mismatch.found not in mismatch.expected
    assert not mismatch.blocking
    assert guard.check_use(use) == []


@pytest.mark.parametrize("use", [wait_use(body=WAIT_BODY), wait_use(), scheduler_use()])
def test_a_body_that_is_as_locked_or_not_locked_is_no_change(use: Use) -> None:
    assert guard.check_body(use) == []


@pytest.mark.parametrize(
    ("use", "found"),
    [
        (wait_use(target="sglang.nowhere.wait"), "AttributeError"),
        (wait_use(target=f"{MODULE}.MOST", kind=UseKind.VALUE), "MOST"),
        (wait_use(target=f"{MODULE}.leap"), "leap"),
        (wait_use(target=OWNER), "type"),
        (scheduler_use(target=f"{MODULE}.wait"), "function"),
    ],
    ids=["no-module", "no-value", "no-attribute", "no-function", "no-class"],
)
def test_a_use_whose_target_is_gone(use: Use, found: str) -> None:
    mismatch = only(guard.check_use(use), Aspect.TARGET)
    assert found in mismatch.found
    assert mismatch.blocking


def test_a_use_that_someone_wrapped_is_still_read(registry: Any) -> None:
    registry.register(f"{MODULE}.wait", lambda result, *_args: result)
    registry.apply_hooks()
    assert guard.check_use(wait_use()) == []


@pytest.mark.parametrize("version", ["0.5.23", "0.5.23.post1", "0.5.23+cu129"])
def test_supported_versions(version: str) -> None:
    assert guard.check_version(version) == []


@pytest.mark.parametrize("version", ["0.5.22", "0.5.24", "0.5.24rc1", "0.6.0", None])
def test_unsupported_versions_name_range_and_remedy(version: str | None) -> None:
    mismatch = only(guard.check_version(version), Aspect.VERSION)
    assert mismatch.expected == SUPPORTED_SGLANG
    assert mismatch.found == (version or "not installed")
    assert SUPPORTED_SGLANG in mismatch.remedy


def test_an_absent_distribution_has_no_version() -> None:
    assert guard.installed_version("no-such-distribution-here") is None
