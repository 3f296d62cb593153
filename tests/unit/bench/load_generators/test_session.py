"""The run against a stand-in; Python's loop takes the place of wrk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import load
from bench.gate import GateError
from bench.http_client import LoadError, post_bytes
from bench.load import Measurement, Window, run_loop
from bench.load_generators import loads, servers
from bench.load_generators.loads import WireArrivals, WireLoop
from bench.load_generators.session import GeneratorRun
from bench.load_generators.wires import Wire
from bench.plan import EXTENSION, STOCK
from bench.report import compare_paths
from bench.workloads import ClosedLoop, OpenLoop, Shape
from sglang_prefill_ext.modelmaker import make_model
from tests.unit.bench.servers import Servers
from tests.unit.bench.stand_in import StandIn

LOADS = [ClosedLoop(2), OpenLoop(0.5, relative=True)]


def python_loop(
    port: int, path: str, bodies: Sequence[bytes], clients: int, seconds: float
) -> Measurement:
    pool = [post_bytes(path, each) for each in bodies]
    return run_loop(load.closed_loop(port, pool, clients, Window(seconds, 20)))


def python_arrivals(
    port: int, path: str, bodies: Sequence[bytes], requests_per_s: float, seconds: float, seed: int
) -> Measurement:
    pool = [post_bytes(path, each) for each in bodies]
    arrivals = load.poisson_arrivals(requests_per_s, Window(seconds, 20), seed)
    return run_loop(load.open_loop(port, pool, arrivals))


@pytest.fixture
def run(stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GeneratorRun:
    monkeypatch.setattr(loads.wrk, "closed_loop", python_loop)
    monkeypatch.setattr(loads.wrk, "open_loop", python_arrivals)
    monkeypatch.setattr(servers, "MeasuredServer", Servers(stand_in))
    model = make_model("micro", tmp_path / "micro")
    return GeneratorRun(model, [Shape.parse("5+2x3")], [Wire.IDS], LOADS, 0.05, front_ends=1)


def measure_both(run: GeneratorRun) -> None:
    for path in (STOCK, EXTENSION):
        run.measure(path, 0)


def test_both_servers_are_measured_and_compared(run: GeneratorRun) -> None:
    measure_both(run)
    closed, opened = compare_paths(run.results)
    assert closed.load == str(WireLoop(2, Wire.IDS)) == "2 clients, ids"
    assert opened.load == str(WireArrivals(0.5, True, Wire.IDS)) == "50% of stock, ids"
    assert closed.extension.packed_share == opened.extension.packed_share == 1.0
    assert run.gate.agreement["5+2x3 ids"].rows >= 3 * 60


def test_open_loops_have_the_share_of_stocks_rate(run: GeneratorRun) -> None:
    measure_both(run)
    stock, extension = (
        next(each for each in run.results if each.path == path and not each.closed)
        for path in (STOCK, EXTENSION)
    )
    (closed,) = (each for each in run.results if each.path == STOCK and each.closed)
    assert stock.rate_per_s == extension.rate_per_s == closed.requests_per_s / 2


def test_other_answers_end_the_run(run: GeneratorRun, stand_in: StandIn) -> None:
    stand_in.extension_shift = 0.1
    with pytest.raises(GateError, match=r"5\+2x3 ids"):
        measure_both(run)


def test_requests_that_are_not_packed_end_the_run(run: GeneratorRun, stand_in: StandIn) -> None:
    stand_in.declines = True
    with pytest.raises(LoadError, match="only 0% of the requests were packed"):
        measure_both(run)
