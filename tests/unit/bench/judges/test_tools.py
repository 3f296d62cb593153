from __future__ import annotations

from pathlib import Path

import pytest

from bench.judges.tools import JudgeError, Tools


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    """An environment with a program that prints its arguments and variables of our environment."""
    program = tmp_path / "bin" / "judge"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\n[ "$1" = fail ] && { echo why >&2; exit 3; }\necho "$1" $PYTHONPATH\n'
    )
    program.chmod(0o755)
    return Tools(tmp_path)


def test_returns_what_a_program_printed(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    assert tools.run("judge", "hello") == "hello\n"


def test_a_program_that_fails_says_why(tools: Tools) -> None:
    with pytest.raises(JudgeError, match=r"judge ended with status 3: why"):
        tools.run("judge", "fail")


def test_a_program_that_is_missing_says_how_to_get_it(tools: Tools) -> None:
    with pytest.raises(JudgeError, match="`make judges` installs it"):
        tools.version("lm-eval")
