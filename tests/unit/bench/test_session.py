"""The whole run against stand-ins that take the place of both servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import session
from bench.gate import GateError
from bench.plan import Plan
from bench.session import ModelRun
from bench.workloads import Shape, parse_load
from tests.unit.bench.servers import Servers
from tests.unit.bench.stand_in import StandIn
from tests.unit.bench.test_plan import CONFIG

SHAPES = (Shape(3, 2, 4), Shape(5, 0, 1))


@pytest.fixture
def run(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[ModelRun, list[list[str]]]:
    """A run of four short loads, and the arguments of the servers that it starts."""
    servers = Servers(stand_in)
    monkeypatch.setattr(session, "MeasuredServer", servers)
    monkeypatch.setattr(session, "_MIN_REQUESTS", 6)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    loads = tuple(parse_load(text) for text in ("2", "50%"))
    plan = Plan(SHAPES, loads, 0.05, 2, ("--enable-prefill-only",))
    return ModelRun("small", model, plan, lambda _: None, tmp_path), servers.started


def test_alternates_and_measures_every_load_on_both(
    run: tuple[ModelRun, list[list[str]]],
) -> None:
    measured, started = run
    measured.run()
    assert ["--enable-prefill-only" in args for args in started] == [False, True, False, True]
    cells = {(r.path, r.repeat, r.shape, r.load) for r in measured.results}
    assert len(cells) == len(measured.results) == 2 * 2 * 2 * 2
    assert {r.packed_share for r in measured.results if r.path == "stock"} == {0.0}
    assert {r.packed_share for r in measured.results if r.path == "extension"} == {1.0}
    for result in measured.results:
        assert result.requests >= 6
        assert result.items_per_s == result.requests_per_s * Shape.parse(result.shape).items
        assert 0.0 < result.p50_ms <= result.p90_ms <= result.p99_ms
    assert set(measured.gate.agreement) == {f"small {shape}" for shape in SHAPES}
    assert all(agreement.holds for agreement in measured.gate.agreement.values())


def test_open_loops_of_both_paths_share_the_rate_from_stock(
    run: tuple[ModelRun, list[list[str]]],
) -> None:
    measured, _ = run
    measured.run()
    for shape in map(str, SHAPES):
        closed, *_ = (r for r in measured.results if r.closed and r.shape == shape)
        rates = {r.rate_per_s for r in measured.results if not r.closed and r.shape == shape}
        assert closed.path == "stock"
        assert rates == {closed.requests_per_s * 0.5}


def test_stops_before_timing_an_extension_that_differs(
    run: tuple[ModelRun, list[list[str]]], stand_in: StandIn
) -> None:
    measured, started = run
    stand_in.extension_shift = 1e-3
    with pytest.raises(
        GateError, match=r"small 3\+2x4, 3\+2x4 gate requests.*1\.0e-03 in probability"
    ):
        measured.run()
    assert len(started) == 2
    assert {result.path for result in measured.results} == {"stock"}
