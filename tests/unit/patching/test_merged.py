from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from sglang_prefill_ext.patching.merged import check_merged, load_added
from sglang_prefill_ext.patching.spec import Aspect
from tests.unit.patching.stub_sglang import MODULE, OWNER, UPSTREAM, step_patch

ADDED = {
    "0001": [f"{OWNER}.validate", f"{MODULE}.register"],
    "0002": [f"{MODULE}.nowhere.register"],
}
BOTH = step_patch(diffs="0001 0002 0003")


def test_what_is_not_merged_is_no_difference(upstream: ModuleType) -> None:
    assert check_merged(BOTH, ADDED) == []
    assert check_merged(BOTH, {}) == []


def test_the_only_diff_of_a_patch(load_upstream: Callable[[str], ModuleType]) -> None:
    load_upstream(UPSTREAM + "\n\ndef register():\n    pass\n")
    patch = step_patch(diffs="0001")
    (found,) = check_merged(patch, ADDED)
    assert (found.id, found.target, found.aspect) == (patch.id, patch.target, Aspect.MERGED)
    assert not found.blocking
    assert found.found == f"merged: 0001, by {MODULE}.register"
    assert found.remedy == f"remove the patch, and {patch.hook}, or call it by what is merged"


def test_one_of_several_diffs_of_a_patch(load_upstream: Callable[[str], ModuleType]) -> None:
    load_upstream(UPSTREAM.replace("def idle", "def validate"))
    (found,) = check_merged(BOTH, ADDED)
    assert found.expected == "not merged: 0001 0002 0003"
    assert found.found == f"merged: 0001, by {OWNER}.validate"
    assert found.remedy == (
        f"remove from {BOTH.hook} what is merged, or call it by that; the rest is in place of "
        "0002 0003"
    )


def test_the_lock_has_the_names_of_the_diffs() -> None:
    assert load_added()["0007"] == [
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._validate_prompt_not_empty"
    ]
