"""Every change to SGLang has a test on the running server that fails without it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang_prefill_ext.patching.table import PATCHES

INTEGRATION = Path(__file__).parents[1] / "integration"


def _claims(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Each id in a `pytest.mark.patch(...)` with the test function that it marks."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:5] == "test_":
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.patch":
                    yield from ((ast.literal_eval(argument), node) for argument in mark.args)


CLAIMS = [
    claim
    for path in sorted(INTEGRATION.glob("*/test_*.py"))
    for claim in _claims(ast.parse(path.read_text()))
]


def test_every_patch_is_claimed_and_nothing_else() -> None:
    assert {patch_id for patch_id, _ in CLAIMS} == {patch.id for patch in PATCHES}


@pytest.mark.parametrize(("patch_id", "test"), CLAIMS, ids=[f"{i}-{t.name}" for i, t in CLAIMS])
def test_a_claim_asserts(patch_id: str, test: ast.AST) -> None:
    assert any(isinstance(node, ast.Assert) for node in ast.walk(test)), patch_id


@pytest.mark.parametrize(
    ("source", "ids"),
    [
        ("@pytest.mark.patch('P1', 'P2')\ndef test_a(): ...", ["P1", "P2"]),
        ("@pytest.mark.patch('P1')\n@pytest.mark.timeout(3)\nasync def test_a(): ...", ["P1"]),
        ("@pytest.mark.patch('P1')\ndef helper(): ...", []),
        ("@pytest.mark.server\ndef test_a(): ...", []),
    ],
)
def test_claims_are_found(source: str, ids: list[str]) -> None:
    assert [patch_id for patch_id, _ in _claims(ast.parse(source))] == ids
