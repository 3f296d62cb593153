"""The table of combinations names existing tests, or a way to check one without a test."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "compatibility.md").read_text()
CHECKED, ON_A_GPU = PAGE.split("## Combinations")[1].split("## Only on a GPU")


def rows(text: str) -> list[list[str]]:
    cells = [line.strip("|").split("|") for line in re.findall(r"^\|.*\|$", text, re.MULTILINE)]
    return [[cell.strip() for cell in row] for row in cells[2:]]


def test_every_combination_is_checked_by_tests_that_exist() -> None:
    assert rows(CHECKED)
    for combination, _, checked_by in rows(CHECKED):
        named = re.findall(r"`(test_\w+)`", checked_by)
        assert named, combination
        for name in named:
            texts = [path.read_text() for path in ROOT.glob(f"tests/**/{name}.py")]
            assert any(re.search(r"^def test_", text, re.MULTILINE) for text in texts), name


def test_what_needs_a_gpu_says_how_to_start() -> None:
    assert re.search(r"`sglang serve --enable-prefill-only --model-path [^`]+`", ON_A_GPU)
    assert rows(ON_A_GPU)
    for combination, _, flags in rows(ON_A_GPU):
        assert re.fullmatch(r"`--[^`]+`", flags), combination
