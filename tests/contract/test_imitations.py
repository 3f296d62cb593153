"""The table of what we imitate of SGLang names existing modules and tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from patches.tools.patch_docs import PAGE

ROOT = Path(__file__).parents[2]
TESTS = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
PACKAGE = ROOT / "sglang_prefill_ext"
ROW = re.compile(r"^\| `([a-z_]+\.\S+)` \| .+ \| (`test_.+`) \|$", re.MULTILINE)
IMITATIONS = ROW.findall(PAGE.read_text().split("## Made as SGLang makes it")[1])


@pytest.mark.parametrize(("made_by", "tests"), IMITATIONS)
def test_what_the_table_names_is_there(made_by: str, tests: str) -> None:
    assert (PACKAGE / (made_by.replace(".", "/") + ".py")).exists()
    assert set(re.findall(r"`(\w+)`", tests)) <= TESTS


def test_each_is_listed_once() -> None:
    modules = [made_by for made_by, _ in IMITATIONS]
    assert modules
    assert sorted(set(modules)) == sorted(modules)


def test_every_module_that_writes_a_body_or_usage_of_sglangs_is_listed() -> None:
    writers = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for path in PACKAGE.rglob("*.py")
        if any(map(is_imitation, ast.parse(path.read_text()).body))
    }
    assert writers
    assert writers <= {made_by for made_by, _ in IMITATIONS}


def is_imitation(node: ast.stmt) -> bool:
    """Whether it is a function `..._body` that returns bytes, or a mapping of usage."""
    if isinstance(node, ast.FunctionDef):
        written = node.returns is not None and ast.unparse(node.returns) == "bytes"
        return written and node.name.endswith("_body")
    return isinstance(node, ast.Assign) and "'total_tokens'" in ast.unparse(node.value)
