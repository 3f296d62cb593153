from __future__ import annotations

from sglang_prefill_ext.patching.docs import markdown
from tests.unit.patching.stub_sglang import HOOKS, OWNER, scheduler_use, step_patch, wait_use


def test_every_fact_of_a_patch_is_written_down() -> None:
    patch = step_patch(
        why="Nothing would step.",
        fingerprints={"0.5.23": "ab" * 32},
        upstream="https://example.org/pull/1",
        remove_when=("sglang.steps.register",),
        only_if_imported=True,
    )
    text = markdown([patch], [])
    for fact in (
        "## T1",
        "Nothing would step.",
        "`sglang.managers.Scheduler.step(self, batch, last=None)`",
        f"`{HOOKS}:around`, around",
        "`self.queue`",
        "0.5.23 `abababababab`",
        "[0001-a.patch](../patches/0001-a.patch)",
        "https://example.org/pull/1",
        "remove when SGLang has: `sglang.steps.register`",
        "only where its module is loaded already",
    ):
        assert fact in text


def test_a_fact_that_a_patch_lacks_is_left_out() -> None:
    text = markdown([step_patch(relies_on=())], [])
    assert "relies on" not in text
    assert "verified bodies" not in text


def test_the_overview_has_a_line_for_each_patch() -> None:
    text = markdown([step_patch(), step_patch(id="T2")], [])
    assert text.count("| `sglang.managers.Scheduler.step` | around | scheduler |") == 2
    assert text.endswith("\n")


def test_every_class_and_every_function_that_is_used_has_a_line() -> None:
    method = wait_use(target=f"{OWNER}.idle", signature="(self)")
    text = markdown([], [scheduler_use(), method, wait_use()])
    assert text.split("\n\n## Made as SGLang makes it\n")[0].splitlines()[-2:] == [
        "| `sglang.managers.Scheduler` | `step`, `queue`, `idle()` | a test |",
        "| `sglang.managers.wait(timeout_s, *, quietly=False)` |  | a test |",
    ]
