from __future__ import annotations

from patches.tools.patch_docs import tables
from patches.tools.upstream import Diff
from sglang_prefill_ext.patching.spec import Group
from tests.unit.patching.stub_sglang import HOOKS, step_patch

DIFFS = [Diff("0001-a.patch", "", "", "", {"Adds": "sglang.seam"}, (), ())]


def test_what_a_reader_asks_of_a_patch_is_written_down() -> None:
    patch = step_patch(why="Nothing would step.", only_if_imported=True)
    row = "| T1 | around `sglang.managers.Scheduler.step` | `{}:around` | {} | {} | {} |"
    why = "Nothing would step. Only where its module is loaded already."
    wanted = row.format(HOOKS, why, "[0001](../patches/0001-a.patch)", "`sglang.seam`")
    assert wanted in tables(DIFFS, [patch]).splitlines()


def test_a_fact_that_a_patch_lacks_is_left_out() -> None:
    assert "Only where" not in tables(DIFFS, [step_patch()])


def test_the_names_that_all_have_in_common_are_said_once() -> None:
    target, hook = "sglang.srt.managers.Scheduler.step", "sglang_prefill_ext.border.hooks:step"
    text = tables(DIFFS, [step_patch(target=target, hook=hook)])
    assert "| around `managers.Scheduler.step` | `hooks:step` |" in text


def test_patches_stand_with_their_group() -> None:
    patches = [step_patch(), step_patch(id="T2", group=Group.FLAGS), step_patch(id="T3")]
    text = tables(DIFFS, patches)
    flags, scheduler = text.split("## Group `flags`")[1].split("## Group `scheduler`")
    assert ("T1" in flags, "T2" in flags, "T3" in flags) == (False, True, False)
    assert scheduler.index("T1") < scheduler.index("T3")
    assert "## Group `cpu`" not in text
