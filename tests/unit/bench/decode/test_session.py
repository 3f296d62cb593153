"""The whole run against a stand-in that takes the place of both servers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.decode import beside
from bench.decode import session as decode_session
from bench.decode.plan import ALONE, OPEN, SATURATED, DecodePlan
from bench.decode.session import DecodeRun
from bench.gate import GateError
from bench.plan import EXTENSION, STOCK
from bench.workloads import Shape
from tests.unit.bench.servers import Servers
from tests.unit.bench.stand_in import StandIn
from tests.unit.bench.test_plan import CONFIG

PLAN = DecodePlan(
    shape=Shape(3, 2, 4),
    clients=2,
    prompt_tokens=5,
    new_tokens=3,
    share=0.1,
    score_clients=2,
    seconds=0.1,
    alternations=2,
    decode_slowdown=3,
)


@pytest.fixture
def servers(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> Servers:
    servers = Servers(stand_in)
    monkeypatch.setattr(decode_session, "MeasuredServer", servers)
    for module in (beside, decode_session):
        monkeypatch.setattr(module, "WARM_UP_S", 0.05)
    monkeypatch.setattr(decode_session, "SCORING_MARGIN_S", 0.05)
    return servers


@pytest.fixture
def run(servers: Servers, tmp_path: Path) -> DecodeRun:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return DecodeRun("small", tmp_path, PLAN, lambda _: None)


def test_alternates_and_measures_every_phase(run: DecodeRun, servers: Servers) -> None:
    run.run()
    flag = ["--prefill-only-decode-slowdown", "3"]
    assert [args[-2:] == flag for args in servers.started] == [False, True, False, True]
    seen = [(each.path, each.repeat, each.phase) for each in run.results]
    assert seen == [
        (path, repeat, phase)
        for repeat in range(2)
        for path, phases in ((STOCK, (ALONE, OPEN)), (EXTENSION, (ALONE, OPEN, SATURATED)))
        for phase in phases
    ]
    for each in run.results:
        assert each.tokens_per_s > 0.0
        assert each.gap_p50_ms <= each.gap_p99_ms
        assert (each.packed_share is None) == (each.path == STOCK)
        if each.phase != OPEN:  # so short a one may see no arrival
            assert (each.items_per_s == 0.0) == (each.phase == ALONE)
    # One rate for both, from the first start of stock.
    assert len({each.offered_per_s for each in run.results if each.phase == OPEN}) == 1
    assert set(run.gate.agreement) == {"small, scores"}
    assert run.gate.agreement["small, scores"].holds
    assert run.equal_generations > 3 * 16


def test_another_generation_is_red_before_timing(run: DecodeRun, stand_in: StandIn) -> None:
    stand_in.extension_id_shift = 1
    with pytest.raises(GateError, match=r"small, extension, before timing: generation 0 differs"):
        run.run()
    assert {result.path for result in run.results} == {STOCK}


def test_another_score_is_red_before_timing(run: DecodeRun, stand_in: StandIn) -> None:
    stand_in.extension_shift = 1e-3
    with pytest.raises(GateError, match="small, scores, gate requests"):
        run.run()


def test_flags_of_the_extension_are_passed_on() -> None:
    plan = replace(PLAN, extension_args=("--prefill-only-order", "fcfs"))
    assert "--prefill-only-order" in plan.server_args(EXTENSION)
    assert "--prefill-only-order" not in plan.server_args(STOCK)
    assert set(plan.server_args(STOCK)) < set(plan.server_args(EXTENSION))
