"""Pages are short to read: lines of prose fit a screen, and the README fits on one or two."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WIDTH = 100
README_LINES = 90
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("patches/*.md")])


def prose(text: str) -> list[str]:
    """The lines outside of code blocks and tables, links without their addresses; no lone names."""
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = (re.sub(r"\]\([^)]*\)", "]", line) for line in text.splitlines())
    return [line for line in lines if not line.startswith(("|", "<!--")) and " " in line.strip()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_of_prose_fit_a_screen(page: Path) -> None:
    lines = prose(page.read_text())
    assert lines
    assert [line for line in lines if len(line) > WIDTH] == []


def test_what_is_no_prose_may_be_wide() -> None:
    wide = "x" * (WIDTH + 1)
    text = f"a\n\n```\n{wide}\n```\n| {wide} |\n[b]({wide})\n  `{wide}`\nc {wide}\n"
    assert [line for line in prose(text) if len(line) > WIDTH] == [f"c {wide}"]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES
