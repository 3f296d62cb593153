from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from bench.expert_parallelism import __main__ as command


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    monkeypatch.setattr("bench.command.RESULTS", tmp_path)
    found = typer.Typer()
    found.command()(command.main)
    return found


def test_prints_appends_and_draws(app: typer.Typer, tmp_path: Path) -> None:
    sizes = ["--gpus", "8", "--routing", "recorded", "--device", "h100-sxm", "--requests", "20"]
    result = CliRunner().invoke(app, [*sizes, "--name", "some"])
    assert result.exit_code == 0, result.output
    assert "Qwen3-30B-A3B, 8 x h100-sxm: fleet over experts divided" in result.output
    assert "fleet: weights take 214 GB of each device" in result.output
    assert "predicted, not measured" in result.output
    lines = [json.loads(line) for line in (tmp_path / "some.jsonl").read_text().splitlines()]
    assert [each["model"] for each in lines] == ["Qwen3-30B-A3B"] * 6 + ["GLM-4.5-Air"] * 6
    assert all(f"{each['compared']['ratios']['P99']:.2f}x" in result.output for each in lines[:6])
    assert {"commit", "machine", "seed", "noise", "peaks", "row_times"} <= set(lines[0])
    assert (tmp_path / "some.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_experts_that_cannot_be_divided_are_an_error(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["--gpus", "3"])
    assert result.exit_code == 2
    assert "give 2, 4, 8 or 16" in result.output
