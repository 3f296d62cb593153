"""The whole run against a stand-in for the server."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bench.gate import GateError
from bench.http_client import LoadError
from bench.load import run_loop
from bench.soak import session
from bench.soak.session import SoakPlan, SoakRun, gc_reports
from bench.status import PackedCounters
from bench.workloads import Shape
from tests.unit.bench.servers import Servers
from tests.unit.bench.stand_in import StandIn
from tests.unit.bench.test_plan import CONFIG

FLAGS = ("--prefill-only-ageing", "3")
PLAN = SoakPlan(0.3, 0.5, Shape(3, 2, 4), 2, 0.1, 0.1, extension_args=FLAGS)


@pytest.fixture
def servers(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> Servers:
    servers = Servers(stand_in)
    monkeypatch.setattr(session, "MeasuredServer", servers)
    return servers


@pytest.fixture
def run(servers: Servers, tmp_path: Path) -> SoakRun:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    return SoakRun("small", model, PLAN, lambda _: None)


def test_a_run_has_windows_and_a_verdict(run: SoakRun, servers: Servers) -> None:
    verdict = run.run()
    assert servers.started == [["--dtype", "float32", "--enable-prefill-only", *FLAGS]]
    assert run.rate_per_s > 0
    assert len(run.windows) >= 3
    assert {name for window in run.windows for name in window.memory_mib} == {
        f"scheduler {os.getpid()}"
    }
    answered = run.windows[0].requests_per_s * run.windows[0].end_s
    assert answered >= 1
    assert verdict.pauses == pytest.approx(0.3 * run.rate_per_s, abs=2)
    assert verdict.long_pauses == 0
    assert set(run.gate.agreement) == {"small, gate", "small, saturation", "small, soak"}


def test_answers_that_differ_from_stocks_give_no_figures(run: SoakRun, stand_in: StandIn) -> None:
    stand_in.shift_per_request = 1e-3
    with pytest.raises(GateError):
        run.run()
    assert run.windows == []


def test_a_server_that_does_not_pack_gives_no_figures(
    run: SoakRun, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(_port: int) -> PackedCounters:
        return PackedCounters(0, 0, 0.0)

    monkeypatch.setattr(session, "packed_counters", silent)
    with pytest.raises(LoadError, match="only 0 of"):
        run.run()


def test_silent_processes_are_an_error(stand_in: StandIn) -> None:
    stand_in.declines = True
    with pytest.raises(LoadError, match="did not report"):
        run_loop(gc_reports(stand_in.port))
