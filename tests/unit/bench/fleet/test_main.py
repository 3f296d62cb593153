from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from bench.fleet import __main__ as command
from bench.fleet.policies import POLICIES


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("bench.command.RESULTS", tmp_path)
    return tmp_path


def test_prints_appends_and_draws(results: Path) -> None:
    app = typer.Typer()
    app.command()(command.main)
    options = ["--workload", "120+180x10", "--scenario", "half speed", "--replicas", "2"]
    sizes = ["--load", "0.3", "--load", "0.6", "--requests", "20", "--name", "two"]
    result = CliRunner().invoke(app, [*options, *sizes])
    assert result.exit_code == 0, result.output
    assert "120+180x10, half speed, 2 replicas" in result.output
    for policy in POLICIES:
        assert sum(f"  {policy} " in line for line in result.output.splitlines()) == 2
    lines = [json.loads(line) for line in (results / "two.jsonl").read_text().splitlines()]
    assert len(lines) == 2 * len(POLICIES)
    assert {"commit", "machine", "seed", "noise", "speed", "p99_ms"} <= set(lines[0])
    assert (results / "two.png").read_bytes().startswith(b"\x89PNG\r\n")
