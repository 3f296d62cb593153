from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from bench.parallelism import __main__ as command
from bench.parallelism.link import Link
from tests.unit.bench.parallelism.test_prediction import SCHEDULER
from tests.unit.bench.stand_in import StandIn


def test_predicted_and_measured_are_printed_and_recorded(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "engine", lambda *_, **__: nullcontext(stand_in))
    monkeypatch.setattr(command, "engines_on", lambda *_: nullcontext([stand_in.port] * 2))
    monkeypatch.setattr(command, "router", lambda _: nullcontext(stand_in))
    monkeypatch.setattr(command, "status_page", lambda _: {"schedulers": [SCHEDULER]})
    monkeypatch.setattr(command, "measure_link", lambda _: Link(1.0, 100.0))
    monkeypatch.setattr(command, "usable_cores", lambda: {0, 1})
    monkeypatch.setattr("bench.command.RESULTS", tmp_path)
    app = typer.Typer()
    app.command()(command.main)
    sizes = ["--preset", "micro", "--shape", "3+2x4", "--seconds", "0", "--turns", "2"]
    result = CliRunner().invoke(app, sizes)
    assert result.exit_code == 0, result.output
    assert "2 x TP1 over 1 x TP2, 3+2x4, 1 clients: predicted " in result.output
    assert "gate green: 1 x TP2: " in result.output
    counts = {
        name: len((tmp_path / f"{name}.jsonl").read_text().splitlines())
        for name in ("parallelism", "parallelism-predicted")
    }
    assert counts == {"parallelism": 3 * 2 * 2, "parallelism-predicted": 3 * 2}
    line = json.loads((tmp_path / "parallelism-predicted.jsonl").read_text().splitlines()[0])
    assert {"commit", "machine", "gate", "link", "device", "predicted_ms"} <= set(line)
    assert (tmp_path / "parallelism.png").read_bytes().startswith(b"\x89PNG\r\n")
