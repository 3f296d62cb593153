from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sglang_prefill_ext import __version__, cli, modelmaker
from sglang_prefill_ext.errors import ConfigError

FACTS = {
    "path": "packed",
    "reason": None,
    "rows": 3,
    "queue_ms": 1.25,
    "experts_recently": [{"layer": 0, "padded": 1.48}, {"layer": 1, "padded": 1.2}],
}


def test_an_explanation_becomes_a_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[Any, ...]] = []

    def explain(url: str, body: bytes, *, api_key: str | None) -> dict[str, Any]:
        asked.append((url, body, api_key))
        return FACTS

    monkeypatch.setattr(cli.explanation, "explain", explain)
    file = tmp_path / "request.json"
    file.write_text("{}")
    run = CliRunner().invoke(cli.app, ["explain", str(file), "--url", "http://h", "--api-key", "k"])
    assert run.exit_code == 0, run.output
    rows = [line.split() for line in run.output.splitlines() if line.strip()]
    assert rows == [
        ["path", "packed"],
        ["rows", "3"],
        ["queue", "ms", "1.2"],
        ["experts", "recently", "layer", "0,", "padded", "1.48"],
        ["experts", "recently", "layer", "1,", "padded", "1.2"],
    ]
    assert asked == [("http://h", b"{}", "k")]


def test_the_version_is_shown() -> None:
    run = CliRunner().invoke(cli.app, ["--version"])
    assert (run.exit_code, run.output) == (0, f"sglang-prefill-ext {__version__}\n")


def test_the_path_of_a_new_model_is_one_line_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "[red]" / "-".join(["long"] * 40)
    monkeypatch.setattr(modelmaker, "make_model", lambda *_, **__: path)
    run = CliRunner().invoke(cli.app, ["make-model", "micro", str(path)])
    assert run.output.strip() == f"micro is in {path}"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConfigError('pip install "sglang-prefill-ext[demo]"'), "sglang-prefill-ext[demo]"),
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/full"),
            "No space left on device: /full",
        ),
    ],
)
def test_what_a_user_can_cause_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    words: str,
) -> None:
    def app() -> None:
        raise error

    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert words in said
    assert said.count("\n") == 1


def test_the_demo_ranks_no_more_items_than_there_are() -> None:
    run = CliRunner().invoke(cli.app, ["demo", "--items", "401"])
    assert run.exit_code == 2
    assert "400" in run.output
