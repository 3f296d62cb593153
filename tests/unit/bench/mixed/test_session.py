"""All variants against a stand-in that takes the place of the servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.gate import GateError
from bench.http_client import LoadError
from bench.load import Measurement
from bench.mixed import session as mix_session
from bench.mixed.plan import ALONE, EXTENSION_ARGS, FCFS, SRPT, MixPlan
from bench.mixed.session import MixRun, in_order_of_arrival, requests_per_forward
from bench.plan import STOCK
from bench.status import PackedCounters
from tests.unit.bench.servers import Servers
from tests.unit.bench.stand_in import StandIn
from tests.unit.bench.test_plan import CONFIG

BOTH = ("stock", "extension")
PLAN = MixPlan((3, 9), 0.5, 0.05, 0.05, 2, extension_args=("--prefill-only-max-items", "7"))


@pytest.fixture
def servers(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> Servers:
    servers = Servers(stand_in)
    monkeypatch.setattr(mix_session, "MeasuredServer", servers)
    monkeypatch.setattr(mix_session, "_MIN_PER_LENGTH", 8)
    monkeypatch.setattr(mix_session, "_IDLE_PER_TURN", 4)
    return servers


@pytest.fixture
def run(servers: Servers, tmp_path: Path) -> MixRun:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return MixRun("small", tmp_path, PLAN, lambda _: None)


def test_variants_in_turn_each_with_its_flags(run: MixRun, servers: Servers) -> None:
    run.run()
    assert len(servers.started) == 1 + len(EXTENSION_ARGS)
    assert "--enable-prefill-only" not in servers.started[0]
    for args, own in zip(servers.started[1:], EXTENSION_ARGS.values(), strict=True):
        assert tuple(args[-len(own) :]) == own
        assert "--prefill-only-max-items" in args[: -len(own)]


def test_loads_are_shares_of_both_saturations(run: MixRun, servers: Servers) -> None:
    run.run()
    seen = [(each.variant, each.load_of) for each in run.results]
    both = [(v, load_of) for v in (ALONE, FCFS, SRPT) for load_of in BOTH]
    assert seen == [(STOCK, "stock"), *both]
    for load_of in BOTH:
        assert len({each.rate_per_s for each in run.results if each.load_of == load_of}) == 1
    for each in run.results:
        assert each.requests >= 16
        assert list(each.idle_ms) == list(each.length_slowdown) == [3, 9]
        assert each.mean_slowdown > 0.0
        assert each.requests_per_forward == (None if each.variant == STOCK else 1.0)
    assert set(run.gate.agreement) == {f"small, {variant}" for variant in EXTENSION_ARGS}
    assert all(agreement.holds for agreement in run.gate.agreement.values())


def test_stops_before_timing_a_variant_that_differs(
    run: MixRun, servers: Servers, stand_in: StandIn
) -> None:
    stand_in.extension_shift = 1e-3
    with pytest.raises(GateError, match=f"small, {ALONE}, gate requests"):
        run.run()
    assert len(servers.started) == 2


def test_requests_that_take_the_stock_path_are_no_measurement(
    run: MixRun, stand_in: StandIn
) -> None:
    stand_in.declines = True
    with pytest.raises(LoadError, match=r"only 0 of .* requests took the packed path"):
        run.run()


def test_requests_per_forward() -> None:
    assert requests_per_forward(PackedCounters(12, 4, 1.0), sent=12) == 3.0


def test_latencies_are_sorted_by_number() -> None:
    seen = Measurement(latencies_s=[0.3, 0.1, 0.2], numbers=[2, 0, 1], sent=3)
    assert in_order_of_arrival(seen) == pytest.approx([100.0, 200.0, 300.0])
