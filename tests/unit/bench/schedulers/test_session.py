from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bench.gate import GateError
from bench.load import Measurement
from bench.schedulers import session
from bench.schedulers.model import Costs, bound
from bench.schedulers.session import (
    SchedulersRun,
    costs_of,
    cpu_seconds,
    flags_of,
    name_of,
    this_machine,
)
from bench.workloads import Shape
from tests.unit.bench.servers import Servers
from tests.unit.bench.stand_in import StandIn
from tests.unit.bench.test_plan import CONFIG


@pytest.fixture
def servers(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> Servers:
    servers = Servers(stand_in)
    monkeypatch.setattr(session, "MeasuredServer", servers)
    monkeypatch.setattr(session, "has_accelerator", lambda: False)
    return servers


@pytest.fixture
def run(servers: Servers, tmp_path: Path) -> SchedulersRun:
    model = tmp_path / "small"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    return SchedulersRun(model, Shape.parse("5+2x3"), 4, 0.05, lambda _: None)


def test_stock_one_and_several_in_turn(run: SchedulersRun, servers: Servers) -> None:
    run.run([3, 2, 1])
    assert [each.schedulers for each in run.results] == [0, 1, 2, 3]
    stock, one, *several = servers.started
    assert "--enable-prefill-only" not in stock
    assert [args[-1] for args in (one, *several)] == ["1", "2", "3"]
    assert {args[-2] for args in (one, *several)} == {"--prefill-only-schedulers"}
    for each in run.results:
        assert (each.preset, each.shape, each.clients) == ("small", "5+2x3", 4)
        assert each.requests >= 20
        assert each.requests_per_s > 0
        assert 0 < each.p50_ms <= each.p99_ms
    assert run.results[0].requests_per_forward is None
    assert run.results[1].requests_per_forward == pytest.approx(1.0)
    assert list(run.gate.agreement) == ["1 scheduler", "2 schedulers", "3 schedulers"]
    assert all(each.holds for each in run.gate.agreement.values())


def test_the_model_predicts_from_the_costs_of_one(run: SchedulersRun) -> None:
    run.run([2])
    stock, one, two = run.results
    assert (stock.predicted_per_s, stock.bound_by) == (None, "")
    costs = Costs(*(ms / 1e3 for ms in (one.python_ms, one.device_ms, one.front_ms, one.cpu_ms)))
    for each in (one, two):
        name, rate = bound(costs, each.schedulers, this_machine())
        assert each.bound_by == name
        assert each.predicted_per_s == pytest.approx(rate)


def test_different_answers_end_the_run(run: SchedulersRun, stand_in: StandIn) -> None:
    stand_in.extension_shift = 0.1
    with pytest.raises(GateError, match="1 scheduler, 5"):
        run.run([2])


def test_costs_are_divided_by_what_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Measurement(seconds=1.0, sent=10, generator_cpu_s=0.5)
    cpu = {1: 0.2, 2: 0.6, 3: 1.0, 4: 1.0}
    monkeypatch.setattr(session, "has_accelerator", lambda: False)
    costs = costs_of(seen, cpu, {3, 4}, busy_s=1.5)
    assert costs.device_s == pytest.approx(0.15)
    assert costs.python_s == pytest.approx(0.05)
    assert costs.front_s == pytest.approx(0.06)
    assert costs.cpu_s == pytest.approx(0.33)
    disturbed = costs_of(seen, cpu, {3, 4}, busy_s=9.0)
    assert (disturbed.device_s, disturbed.python_s) == (pytest.approx(0.2), 0.0)
    monkeypatch.setattr(session, "has_accelerator", lambda: True)
    assert costs_of(seen, cpu, {3, 4}, busy_s=1.5).python_s == pytest.approx(0.2)


def test_processes_are_told_apart() -> None:
    own = os.getpid()
    assert cpu_seconds([own])[own] > 0


def test_names_and_flags() -> None:
    assert [name_of(number) for number in (0, 1, 2)] == ["stock", "1 scheduler", "2 schedulers"]
    assert flags_of(0) == []
