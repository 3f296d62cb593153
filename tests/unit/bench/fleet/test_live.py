from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from bench.fleet import live
from tests.unit.bench.commands import Commands
from tests.unit.bench.stand_in import StandIn


def test_engines_take_turns_and_are_recorded(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, commands: Commands
) -> None:
    routed: list[list[int]] = []

    def router(ports: list[int]) -> Any:
        routed.append(ports)
        return nullcontext(stand_in)

    ports = [stand_in.port] * 2
    monkeypatch.setattr(live, "engines_on", lambda *_: nullcontext(ports))
    monkeypatch.setattr(live, "router", router)
    sizes = ("--preset", "micro", "--shape", "3+2x4", "--seconds", "0", "--turns", "2")
    output = commands.run(live.main, *sizes)
    assert routed == [ports[:1], ports]
    assert "gate green: 2 engines behind a router: " in output
    lines = commands.lines("fleet-live")
    assert len(lines) == 3 * 2 * 2
    assert {each["subject"] for each in lines} == {
        "one engine",
        "one engine behind a router",
        "2 engines behind a router",
    }
    assert {"commit", "machine", "gate", "least_ms", "p50_ms"} <= set(lines[0])
