from __future__ import annotations

from sglang_prefill_ext.patching.spec import Aspect, Mismatch
from tests.unit.patching.stub_sglang import step_patch


def test_a_target_is_module_class_and_attribute() -> None:
    patch = step_patch()
    assert patch.module == "sglang.managers"
    assert patch.owner == "sglang.managers.Scheduler"
    assert patch.attribute == "step"


def test_a_mismatch_reads_as_what_was_expected_found_and_to_do() -> None:
    mismatch = Mismatch("P1", "a.B.c", Aspect.SIGNATURE, "(self)", "(self, x)", "wait")
    assert str(mismatch).splitlines() == [
        "P1 a.B.c: signature differs",
        "    expected: (self)",
        "    found:    (self, x)",
        "    remedy:   wait",
    ]
