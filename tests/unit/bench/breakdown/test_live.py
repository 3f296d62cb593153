from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.breakdown import live
from bench.load_generators.wires import Wire, http_bodies
from bench.plan import EXTENSION, STOCK
from bench.workloads import Shape, draw_requests
from tests.unit.bench.servers import Running, Servers
from tests.unit.bench.stand_in import StandIn


@pytest.mark.parametrize("path", [STOCK, EXTENSION])
def test_a_running_server_is_asked_and_its_processes_are_looked_at(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    servers = Servers(stand_in)
    monkeypatch.setattr(live, "MeasuredServer", servers)
    monkeypatch.setattr(Running, "pids", [os.getpid()])
    requests = draw_requests(Shape.parse("5+2x3"), 1000, 4, seed=0)
    pool = http_bodies(Wire.IDS, requests, str)
    (cost,) = live.measure(tmp_path / "micro", path, [pool], seconds=0.1)
    assert cost.latency_us > 0
    assert cost.cpu_us.keys() == {"front end"}
    assert (cost.forward_us is not None) == (path == EXTENSION)
    assert ("--enable-prefill-only" in servers.started[0]) == (path == EXTENSION)
