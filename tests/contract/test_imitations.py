"""What is made as SGLang makes it: the modules and the tests that the table names are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_prefill_ext.patching.imitations import IMITATIONS, Imitation

ROOT = Path(__file__).parents[2]
TESTS = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize("imitation", IMITATIONS, ids=lambda imitation: imitation.made_by)
def test_what_the_table_names_is_there(imitation: Imitation) -> None:
    module = ROOT / "sglang_prefill_ext" / (imitation.made_by.replace(".", "/") + ".py")
    assert module.exists()
    assert imitation.tests
    assert set(imitation.tests) <= TESTS


def test_each_is_listed_once() -> None:
    modules = [imitation.made_by for imitation in IMITATIONS]
    assert sorted(set(modules)) == sorted(modules)
