from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from types import ModuleType
from typing import Any

import pytest

from sglang_prefill_ext.border import patches
from sglang_prefill_ext.errors import UnsupportedSGLangError
from sglang_prefill_ext.patching import guard
from sglang_prefill_ext.patching.spec import Group, Kind, Patch, Use
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

pytestmark = pytest.mark.usefixtures("registry")

SCHEDULER = (Group.SCHEDULER,)

STATIC = step_patch(
    id="T2",
    target=f"{OWNER}.parse",
    kind=Kind.AFTER,
    hook=f"{HOOKS}:after_static",
    signature="(text)",
    relies_on="",
)
CLASS = step_patch(
    id="T3",
    target=f"{OWNER}.create",
    kind=Kind.AFTER,
    hook=f"{HOOKS}:after_class",
    signature="(cls, name)",
    relies_on="",
)
ATTRIBUTE = attribute_patch(id="T4")
ALL = (step_patch(), STATIC, CLASS, ATTRIBUTE)


def apply(groups: Collection[Group], table: Sequence[Patch], uses: Sequence[Use] = ()) -> None:
    """`patches.apply` without uses by default; its own default are those of the real SGLang."""
    patches.apply(groups, table, uses)


def stock(upstream: ModuleType) -> dict[str, Any]:
    return dict(vars(upstream.Scheduler))


def test_around(upstream: ModuleType) -> None:
    apply(SCHEDULER, [step_patch()])
    assert upstream.Scheduler().step("b") == "around stock b"


def test_before_changes_the_arguments(upstream: ModuleType) -> None:
    apply(SCHEDULER, [step_patch(kind=Kind.BEFORE, hook=f"{HOOKS}:before")])
    assert upstream.Scheduler().step("b") == "stock changed b"


def test_after_keeps_static_and_class_methods(upstream: ModuleType) -> None:
    apply(SCHEDULER, [STATIC, CLASS])
    assert upstream.Scheduler.parse("a") == ["a", "A"]
    assert upstream.Scheduler().parse("a") == ["a", "A"]
    assert upstream.Scheduler.create("x") == (upstream.Scheduler, "x!")


async def test_around_a_coroutine(upstream: ModuleType) -> None:
    patch = step_patch(
        target=f"{OWNER}.score",
        hook=f"{HOOKS}:around_async",
        signature="(self, item)",
        relies_on="",
    )
    apply(SCHEDULER, [patch])
    assert await upstream.Scheduler().score(1) == ["around", "stock", 1]


def test_an_attribute_is_called_without_the_instance(upstream: ModuleType) -> None:
    message = upstream.Message
    apply(SCHEDULER, [ATTRIBUTE])
    assert upstream.Scheduler().message == "our message"
    assert upstream.Message is message, "the hook is the attribute's, not the class's"


def test_a_module_is_not_imported_only_to_be_patched() -> None:
    patch = step_patch(target="sglang.absent.Scheduler.step", only_if_imported=True)
    apply(SCHEDULER, [patch])
    assert "sglang.absent" not in sys.modules
    assert [state.applied for state in patches.states([patch])] == [False]


def test_it_is_patched_once_it_was_imported(
    upstream: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch = step_patch(only_if_imported=True)
    with monkeypatch.context() as unloaded:
        unloaded.delitem(sys.modules, MODULE)
        apply(SCHEDULER, [patch])
    assert upstream.Scheduler().step("b") == "stock b"
    apply(SCHEDULER, [patch])
    assert upstream.Scheduler().step("b") == "around stock b"


def test_only_the_groups_asked_for_are_applied() -> None:
    other = step_patch(id="T9", target="sglang.absent.Scheduler.step", group=Group.FRONTEND)
    apply(SCHEDULER, [step_patch(), other])
    assert [state.applied for state in patches.states([step_patch(), other])] == [True, False]


def test_applying_twice_wraps_once(upstream: ModuleType) -> None:
    apply(SCHEDULER, ALL)
    first = stock(upstream)
    apply(SCHEDULER, ALL)
    assert stock(upstream) == first
    assert upstream.Scheduler().step("b") == "around stock b"


def test_one_mismatch_and_nothing_is_changed(upstream: ModuleType) -> None:
    before = stock(upstream)
    wrong = step_patch(id="T9", target=f"{OWNER}.score", signature="(self)")
    with pytest.raises(UnsupportedSGLangError, match=r"T9 .*score: signature") as caught:
        apply(SCHEDULER, [*ALL, wrong])
    for word in ("expected: (self)", "found:    (self, item)", "remedy:"):
        assert word in str(caught.value)
    assert stock(upstream) == before
    assert not any(state.applied for state in patches.states([*ALL, wrong]))


def test_every_mismatch_is_listed() -> None:
    wrong = [step_patch(signature="()"), step_patch(id="T9", relies_on="self.nothing")]
    with pytest.raises(UnsupportedSGLangError) as caught:
        apply(SCHEDULER, wrong)
    assert "T1" in str(caught.value)
    assert "T9" in str(caught.value)


def test_what_hooks_use_is_checked_before_anything_is_changed(upstream: ModuleType) -> None:
    before = stock(upstream)
    wrong = [scheduler_use(members=("nothing",)), wait_use(signature="()")]
    with pytest.raises(UnsupportedSGLangError) as caught:
        apply(SCHEDULER, ALL, wrong)
    assert f"used {OWNER}: members differs" in str(caught.value)
    assert f"used {MODULE}.wait: signature differs" in str(caught.value)
    assert stock(upstream) == before


def test_uses_that_fit_are_no_hindrance(upstream: ModuleType) -> None:
    apply(SCHEDULER, [step_patch()], [scheduler_use(), wait_use()])
    assert upstream.Scheduler().step("b") == "around stock b"


def test_only_the_uses_of_the_groups_being_applied_are_checked(upstream: ModuleType) -> None:
    elsewhere = scheduler_use(target="sglang.absent.Class", groups=(Group.FRONTEND,))
    apply(SCHEDULER, [step_patch()], [elsewhere])
    assert "sglang.absent" not in sys.modules
    assert upstream.Scheduler().step("b") == "around stock b"


def test_a_failure_while_applying_takes_everything_back(
    upstream: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stock(upstream)
    wrapped = patches.wrapped

    def fail_at_parse(raw: object, hook: Callable[..., Any], kind: Kind) -> object:
        if raw is vars(upstream.Scheduler)["parse"]:
            raise TypeError("cannot be wrapped")
        return wrapped(raw, hook, kind)

    monkeypatch.setattr(patches, "wrapped", fail_at_parse)
    with pytest.raises(UnsupportedSGLangError, match="TypeError: cannot be wrapped"):
        apply(SCHEDULER, ALL)
    assert stock(upstream) == before


def test_a_hook_that_did_not_arrive_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "wrapped", lambda raw, *_how: raw)
    with pytest.raises(UnsupportedSGLangError, match=f"carries {HOOKS}:around"):
        apply(SCHEDULER, [step_patch()])


def test_a_subclass_that_overrides_the_target_is_refused_unless_it_is_spared(
    upstream: ModuleType,
) -> None:
    before = stock(upstream)

    class Fork(upstream.Scheduler):  # type: ignore[name-defined, misc]
        def step(self, batch: str, last: Any = None) -> str:
            return "forked"

    with pytest.raises(UnsupportedSGLangError, match=r"Fork overrides it"):
        apply(SCHEDULER, [step_patch()])
    assert stock(upstream) == before
    apply(SCHEDULER, [step_patch(spares=f"{Fork.__module__}.{Fork.__qualname__}")])
    assert Fork().step("b") == "forked"
    assert upstream.Scheduler().step("b") == "around stock b"


def test_a_subclass_that_calls_super_is_fine(upstream: ModuleType) -> None:
    class Child(upstream.Scheduler):  # type: ignore[name-defined, misc]
        def step(self, batch: str, last: Any = None) -> str:
            return "child " + super().step(batch, last)

    apply(SCHEDULER, [step_patch()])
    assert Child().step("b") == "child around stock b"


def test_a_method_borrowed_by_another_class_is_refused(
    load_upstream: Callable[[str], ModuleType],
) -> None:
    load_upstream(UPSTREAM + "\n\nclass Borrower:\n    borrowed = Scheduler.step\n")
    with pytest.raises(UnsupportedSGLangError, match=r"sglang.managers.Borrower.borrowed is still"):
        apply(SCHEDULER, [step_patch()])


def test_a_module_global_follows_the_target(load_upstream: Callable[[str], ModuleType]) -> None:
    module = load_upstream(UPSTREAM + "\n\nstep, parse = Scheduler.step, Scheduler.parse\n")
    apply(SCHEDULER, [step_patch(), STATIC])
    assert module.step(module.Scheduler(), "b") == "around stock b"
    assert module.parse("a") == ["a", "A"]


def test_a_module_global_gets_the_original_back(load_upstream: Callable[[str], ModuleType]) -> None:
    borrowed = "class Borrower:\n    borrowed = Scheduler.step\n"
    module = load_upstream(
        f"{UPSTREAM}\n\nstep, parse = Scheduler.step, Scheduler.parse\n{borrowed}"
    )
    with pytest.raises(UnsupportedSGLangError, match="borrowed is still"):
        apply(SCHEDULER, [step_patch(), STATIC])
    assert (module.step, module.parse) == (module.Scheduler.step, module.Scheduler.parse)
    assert module.step(module.Scheduler(), "b") == "stock b"
    assert module.parse("a") == ["a"]


def test_drift_is_logged_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    drifted = step_patch(fingerprints={"0.5.22": "0" * 64})
    with caplog.at_level(logging.WARNING):
        apply(SCHEDULER, [drifted])
    assert "T1" in caplog.text
    assert [(state.applied, state.drift) for state in patches.states([drifted])] == [(True, True)]


def test_states_tell_each_patch(upstream: ModuleType) -> None:
    known = step_patch(fingerprints=known_body(upstream))
    apply(SCHEDULER, [known])
    applied, not_applied = patches.states([known, STATIC])
    assert asdict(applied) == {
        "id": "T1",
        "target": f"{OWNER}.step",
        "group": "scheduler",
        "applied": True,
        "drift": False,
    }
    assert (not_applied.applied, not_applied.drift) == (False, None)


def test_states_look_at_the_class_itself(upstream: ModuleType) -> None:
    apply(SCHEDULER, [step_patch()])
    upstream.Scheduler.step = lambda self, batch, last=None: "overwritten"
    assert [state.applied for state in patches.states([step_patch()])] == [False]


@pytest.mark.parametrize("ours_first", [True, False])
def test_hooks_of_other_plugins_survive(
    upstream: ModuleType, registry: Any, ours_first: bool
) -> None:
    if ours_first:
        apply(SCHEDULER, [step_patch()])
    registry.register(f"{OWNER}.step", lambda result, *_args: f"theirs({result})")
    if not ours_first:
        apply(SCHEDULER, [step_patch()])
    registry.apply_hooks()
    assert upstream.Scheduler().step("b") == "theirs(around stock b)"
    assert [state.applied for state in patches.states([step_patch()])] == [True]


def test_an_unsupported_version_refuses_all_but_the_flags(
    upstream: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "installed_version", lambda: "0.6.0")
    with pytest.raises(UnsupportedSGLangError, match=r"sglang: version differs"):
        apply(SCHEDULER, [step_patch()])
    apply((Group.FLAGS,), [step_patch(group=Group.FLAGS)])
    assert upstream.Scheduler().step("b") == "around stock b"


def test_a_function_of_a_module_is_changed_where_it_is_called(
    upstream: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["sglang"], "managers", upstream, raising=False)
    patch = step_patch(
        target=f"{MODULE}.wait",
        kind=Kind.AFTER,
        hook=f"{HOOKS}:after_wait",
        signature="(timeout_s, *, quietly=False)",
        relies_on="quietly",
    )
    apply(SCHEDULER, [patch])
    assert upstream.wait(3, quietly=True) == ("waited", 3, True)
