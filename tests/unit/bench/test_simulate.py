from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from bench import simulate
from bench.simulation.traffic import LENGTHS
from bench.simulation.variants import VARIANTS


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "results"
    monkeypatch.setattr("bench.command.RESULTS", directory)
    return directory


def _run(*arguments: str) -> str:
    app = typer.Typer()
    app.command()(simulate.main)
    result = CliRunner().invoke(app, ["--requests", "100", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_prints_a_line_per_kind_of_traffic_load_and_variant(results: Path) -> None:
    lines = _run("--load", "0.5", "--load", "0.8").splitlines()
    for variant in VARIANTS:
        assert sum(f" {variant.name} " in line for line in lines) == 4
    fcfs = [line for line in lines if " fcfs " in line]
    assert all("(1.00x)" in line for line in fcfs)


def test_appends_records_and_draws_the_plot(results: Path) -> None:
    options = ("--load", "0.5", "--shared", "0.3", "--launch-ms", "2", "--name", "two")
    for _ in range(2):
        assert "30% of the requests" in _run(*options)
    lines = [json.loads(line) for line in (results / "two.jsonl").read_text().splitlines()]
    assert len(lines) == 2 * len(VARIANTS)
    first = lines[0]
    assert first["cost"] == {"launch_ms": 2.0, "ms_per_token": 0.0025, "ms_per_row": 0.0}
    assert first["shared"] == 0.3
    assert list(first["class_slowdown"]) == [str(length) for length in LENGTHS]
    assert {"commit", "machine", "seed", "requests", "cache"} <= set(first)
    assert (results / "two.png").read_bytes().startswith(b"\x89PNG\r\n")
