from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from bench import simulate_decode
from bench.simulation.decode_run import REGIMES, VARIANTS


def test_prints_and_records_a_line_per_regime_load_and_variant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.command.RESULTS", tmp_path)
    app = typer.Typer()
    app.command()(simulate_decode.main)
    options = ["--requests", "100", "--load", "0.5", "--load", "0.9", "--name", "two"]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    for variant in VARIANTS:
        assert result.output.count(f" {variant.name} ") == 2 * len(REGIMES)
    lines = [json.loads(line) for line in (tmp_path / "two.jsonl").read_text().splitlines()]
    assert [(line["regime"], line["load"], line["variant"]) for line in lines] == [
        (regime.name, load, variant.name)
        for regime in REGIMES
        for load in (0.5, 0.9)
        for variant in VARIANTS
    ]
    assert {"commit", "machine", "cost", "requests", "seed"} <= set(lines[0])
    assert (tmp_path / "two.png").read_bytes().startswith(b"\x89PNG\r\n")
