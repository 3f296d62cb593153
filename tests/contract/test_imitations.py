"""The table of what we imitate of SGLang names existing modules and tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from patches.tools.patch_docs import PAGE

ROOT = Path(__file__).parents[2]
TESTS = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
ROW = re.compile(r"^\| `(border\.\S+)` \| .+ \| (`test_.+`) \|$", re.MULTILINE)
IMITATIONS = ROW.findall(PAGE.read_text().split("## Made as SGLang makes it")[1])


@pytest.mark.parametrize(("made_by", "tests"), IMITATIONS)
def test_what_the_table_names_is_there(made_by: str, tests: str) -> None:
    assert (ROOT / "sglang_prefill_ext" / (made_by.replace(".", "/") + ".py")).exists()
    assert set(re.findall(r"`(\w+)`", tests)) <= TESTS


def test_each_is_listed_once() -> None:
    modules = [made_by for made_by, _ in IMITATIONS]
    assert modules
    assert sorted(set(modules)) == sorted(modules)
