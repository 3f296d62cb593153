"""What is made as SGLang makes it: the modules and the tests that the table names are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_prefill_ext.patching.docs import IMITATIONS

ROOT = Path(__file__).parents[2]
TESTS = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize("made_by", IMITATIONS)
def test_what_the_table_names_is_there(made_by: str) -> None:
    assert (ROOT / "sglang_prefill_ext" / (made_by.replace(".", "/") + ".py")).exists()
    _, tests = IMITATIONS[made_by]
    assert tests
    assert set(tests) <= TESTS
