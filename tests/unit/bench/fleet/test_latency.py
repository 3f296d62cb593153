from __future__ import annotations

import os
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from bench.fleet import latency
from bench.fleet.latency_report import ALONE, LatencyResult, added
from tests.unit.bench.commands import Commands
from tests.unit.bench.stand_in import StandIn


class Routers:
    """Routers that are this very process."""

    def __init__(self, port: int) -> None:
        self.port, self.pids = port, [os.getpid()]


def test_subjects_take_turns_and_are_recorded(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, commands: Commands
) -> None:
    started: list[tuple[Any, ...]] = []

    def router(*how: Any) -> Any:
        started.append(how)
        return nullcontext(Routers(stand_in.port))

    engine = SimpleNamespace(port=stand_in.port, pids=[])
    monkeypatch.setattr(latency, "engine", lambda *_: nullcontext(engine))
    monkeypatch.setattr(latency, "scheduler_apart", lambda _pids: nullcontext())
    monkeypatch.setattr(latency, "router", router)
    sizes = ("--preset", "micro", "--shape", "3+2x4", "--seconds", "0", "--turns", "2")
    output = commands.run(latency.main, *sizes)
    assert started == [([stand_in.port],), ([stand_in.port], 2)]
    assert "gate green: behind 2 routers: " in output
    lines = commands.lines("fleet-latency")
    subjects = [ALONE, "behind a router", "behind 2 routers"]
    wanted = [each for turn in (subjects, subjects[::-1]) for each in turn for _ in range(2)]
    assert [each["subject"] for each in lines] == wanted
    assert [bool(each["rate_per_s"]) for each in lines] == [True, False] * 6
    assert all((each["router_cpu_ms"] > 0) <= (each["subject"] != ALONE) for each in lines)
    assert {"commit", "machine", "gate"} <= set(lines[0])


def _result(subject: str, turn: int, p50_ms: float, *, most: bool = False) -> LatencyResult:
    rate, clients = (0.0, 8) if most else (30.0, 0)
    cpu_ms = 0.0 if subject == ALONE else 1.5
    case = "tiny", "60+2x50", subject, turn
    return LatencyResult(*case, rate, clients, 300, 70.0 + turn, p50_ms, 2 * p50_ms, cpu_ms)


def test_differences_are_those_of_the_same_turn() -> None:
    results = [_result(ALONE, turn, 10.0 * turn) for turn in (1, 2, 3)]
    results += [_result("routed", turn, 10.0 * turn + 1) for turn in (3, 2, 1)]
    results += [_result(each, 1, 99.0, most=True) for each in (ALONE, "routed")]
    alone, routed = added(results)
    assert (alone.more_p50_ms, alone.more_p99_ms) == (0, 0)
    assert (routed.p50_ms, routed.p99_ms) == (21, 42)
    assert (routed.more_p50_ms, routed.more_p99_ms) == (1, 2)
    assert (routed.requests_per_s, routed.router_cpu_ms) == (71.0, 1.5)
    assert "P50 21.0 ms (+1.0), P99 42.0 ms (+2.0)" in str(routed)
