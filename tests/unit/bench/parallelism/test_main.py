from __future__ import annotations

from contextlib import nullcontext

import pytest

from bench.parallelism import __main__ as command
from bench.parallelism.link import Link
from tests.unit.bench.commands import Commands
from tests.unit.bench.parallelism.test_prediction import SCHEDULER
from tests.unit.bench.stand_in import StandIn


def test_predicted_and_measured_are_printed_and_recorded(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, commands: Commands
) -> None:
    monkeypatch.setattr(command, "engine", lambda *_, **__: nullcontext(stand_in))
    monkeypatch.setattr(command, "engines_on", lambda *_: nullcontext([stand_in.port] * 2))
    monkeypatch.setattr(command, "router", lambda _: nullcontext(stand_in))
    monkeypatch.setattr(command, "extension_page", lambda _: {"schedulers": [SCHEDULER]})
    monkeypatch.setattr(command, "measure_link", lambda _: Link(1.0, 100.0))
    monkeypatch.setattr(command, "usable_cores", lambda: {0, 1})
    sizes = ("--preset", "micro", "--shape", "3+2x4", "--seconds", "0", "--turns", "2")
    output = commands.run(command.main, *sizes)
    assert "2 x TP1 over 1 x TP2, 3+2x4, 1 clients: predicted " in output
    assert "gate green: 1 x TP2: " in output
    assert len(commands.lines("parallelism")) == 3 * 2 * 2
    predicted = commands.record("parallelism-predicted")
    assert len(predicted) == 3 * 2
    assert {"commit", "machine", "gate", "link", "device", "predicted_ms"} <= set(predicted[0])
