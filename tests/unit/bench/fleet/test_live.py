from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from bench.fleet import live
from tests.unit.bench.stand_in import StandIn


def test_engines_take_turns_and_are_recorded(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    routed: list[list[int]] = []

    def router(ports: list[int]) -> Any:
        routed.append(ports)
        return nullcontext(stand_in)

    ports = [stand_in.port] * 2
    monkeypatch.setattr(live, "engines_on", lambda *_: nullcontext(ports))
    monkeypatch.setattr(live, "router", router)
    monkeypatch.setattr("bench.command.RESULTS", tmp_path)
    app = typer.Typer()
    app.command()(live.main)
    sizes = ["--preset", "micro", "--shape", "3+2x4", "--seconds", "0", "--turns", "2"]
    result = CliRunner().invoke(app, sizes)
    assert result.exit_code == 0, result.output
    assert routed == [ports[:1], ports]
    assert "gate green: 2 engines behind a router: " in result.output
    lines = [json.loads(line) for line in (tmp_path / "fleet-live.jsonl").read_text().splitlines()]
    assert len(lines) == 3 * 2 * 2
    assert {each["subject"] for each in lines} == {
        "one engine",
        "one engine behind a router",
        "2 engines behind a router",
    }
    assert (tmp_path / "fleet-live.png").read_bytes().startswith(b"\x89PNG")
    assert {"commit", "machine", "gate", "least_ms", "p50_ms"} <= set(lines[0])
