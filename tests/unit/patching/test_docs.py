from __future__ import annotations

from sglang_prefill_ext.patching.docs import markdown
from sglang_prefill_ext.patching.spec import Group
from sglang_prefill_ext.patching.upstream import Diff
from tests.unit.patching.stub_sglang import HOOKS, scheduler_use, step_patch, wait_use

DIFFS = [Diff("0001-a.patch", "", "", "", {"Adds": "sglang.seam"}, (), ())]


def test_what_a_reader_asks_of_a_patch_is_written_down() -> None:
    patch = step_patch(why="Nothing would step.", only_if_imported=True)
    row = "| T1 | around `sglang.managers.Scheduler.step` | `{}:around` | {} | {} | {} |"
    why = "Nothing would step. Only where its module is loaded already."
    wanted = row.format(HOOKS, why, "[0001](../patches/0001-a.patch)", "`sglang.seam`")
    assert wanted in markdown(DIFFS, [patch], []).splitlines()


def test_a_fact_that_a_patch_lacks_is_left_out() -> None:
    assert "Only where" not in markdown(DIFFS, [step_patch()], [])


def test_the_names_that_all_have_in_common_are_said_once() -> None:
    target, hook = "sglang.srt.managers.Scheduler.step", "sglang_prefill_ext.border.hooks:step"
    text = markdown(DIFFS, [step_patch(target=target, hook=hook)], [])
    assert "| around `managers.Scheduler.step` | `hooks:step` |" in text


def test_patches_stand_with_their_group() -> None:
    patches = [step_patch(), step_patch(id="T2", group=Group.FLAGS), step_patch(id="T3")]
    text = markdown(DIFFS, patches, [])
    flags, scheduler = text.split("## Group `flags`")[1].split("## Group `scheduler`")
    assert ("T1" in flags, "T2" in flags, "T3" in flags) == (False, True, False)
    assert scheduler.index("T1") < scheduler.index("T3")
    assert "## Group `cpu`" not in text
    assert text.endswith("\n")


def test_what_is_used_has_a_line_where_its_name_does_not_say_for_what() -> None:
    other = wait_use(target="sglang.srt.layers.pooler.Pooler")
    text = markdown([], [], [scheduler_use(why=""), wait_use(), other])
    assert text.split("\n\n## Made as SGLang makes it\n")[0].splitlines()[-3:] == [
        "|---|---|",
        "| `sglang.managers.wait` | a test |",
        "| `layers.pooler.Pooler` | a test |",
    ]
