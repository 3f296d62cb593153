"""Each benchmark is run once, on two real servers that all of them share.

Loads end by counts, not by time: a slow machine takes longer and sees the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench import load
from bench.breakdown import live
from bench.decisions.kinds import KINDS, Prompts, case_of, compare_numbers
from bench.decode import beside
from bench.decode import session as decode_session
from bench.decode.plan import ALONE, OPEN, SATURATED, DecodePlan
from bench.decode.session import DecodeRun
from bench.gpu import __main__ as gpu_command
from bench.http_client import LoadError
from bench.load import Measurement, Window, run_loop
from bench.load_generators import servers as generator_servers
from bench.load_generators import wrk
from bench.load_generators.session import GeneratorRun
from bench.load_generators.wires import Wire, http_bodies
from bench.mixed import session as mixed_session
from bench.mixed.mix import ALONE as ONE_A_FORWARD
from bench.mixed.mix import FCFS, SRPT, MixPlan
from bench.mixed.session import MixRun
from bench.schedulers import session as schedulers_session
from bench.schedulers.session import SchedulersRun
from bench.score import session as main_session
from bench.score.plan import EXTENSION, STOCK, Plan, make_cases
from bench.score.report import compare_paths
from bench.score.session import ModelRun
from bench.soak import subjects as soak_subjects
from bench.soak.session import SoakPlan, SoakRun
from bench.workloads import ClosedLoop, OpenLoop, Shape, draw_requests
from sglang_prefill_ext.local_server import LocalServer
from tests.forking.launch import ForkedServer
from tests.integration.support.own_server import LOGS
from tests.unit.bench.commands import Commands

pytestmark = pytest.mark.server

SHAPE = Shape(5, 2, 3)
LOADS = (ClosedLoop(2), OpenLoop(0.5, relative=True))
BOTH = (STOCK, EXTENSION)


@pytest.fixture(scope="module")
def stock(model_dir: Callable[[str], Path]) -> Iterator[LocalServer]:
    log = LOGS / "benches-stock.log"
    flags = ["--dtype", "float32", "--sleep-on-idle", "--enable-tokenizer-batch-encode"]
    with ForkedServer(model_dir("micro"), flags, log_path=log) as running:
        yield running


@pytest.fixture
def started(
    stock: LocalServer, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> list[list[str]]:
    """Flags of the servers that a benchmark starts; it gets one of two running servers instead."""
    started: list[list[str]] = []

    def running(_model: Path, args: Sequence[str], **_how: Any) -> nullcontext[LocalServer]:
        started.append(list(args))
        return nullcontext(server if "--enable-prefill-only" in args else stock)

    sessions = (main_session, decode_session, mixed_session, soak_subjects)
    for module in (*sessions, schedulers_session, live, generator_servers):
        monkeypatch.setattr(module, "MeasuredServer", running)
    # The real function would leave the servers of the other tests on one core each.
    monkeypatch.setattr(decode_session, "scheduler_apart", lambda _pids: nullcontext())
    return started


@pytest.fixture
def model(model_dir: Callable[[str], Path]) -> Path:
    return model_dir("micro")


def silent(_what: str) -> None:
    """Ignores what a benchmark reports of its progress."""


def test_main(model: Path, tmp_path: Path, started: list[list[str]]) -> None:
    shapes = (SHAPE, Shape(5, 0, 1))
    plan = Plan(LOADS, 0.0, 2, ("--enable-prefill-only",))
    run = ModelRun(model, plan, silent, tmp_path)
    run.run(make_cases(model, shapes))
    assert ["--enable-prefill-only" in args for args in started] == [False, True, False, True]
    cells = {(r.path, r.repeat, r.shape, r.load) for r in run.results}
    assert len(cells) == len(run.results) == 2 * 2 * 2 * 2
    assert {r.packed_share for r in run.results if r.path == STOCK} == {0.0}
    assert {r.packed_share for r in run.results if r.path == EXTENSION} == {1.0}
    for each in run.results:
        assert each.requests >= 20
        assert each.items_per_s == each.requests_per_s * Shape.parse(each.shape).items
        assert 0.0 < each.p50_ms <= each.p90_ms <= each.p99_ms
    for shape in map(str, shapes):
        closed, *_ = (r for r in run.results if r.closed and r.shape == shape)
        rates = {r.rate_per_s for r in run.results if not r.closed and r.shape == shape}
        assert rates == {closed.requests_per_s * 0.5}
    assert set(run.gate.agreement) == {f"micro {shape}" for shape in shapes}
    assert all(agreement.holds for agreement in run.gate.agreement.values())


def test_main_side_by_side(model: Path, tmp_path: Path, started: list[list[str]]) -> None:
    flags = ("--enable-prefill-only",)
    plan = Plan((ClosedLoop(2),), 0.0, 3, flags, side_by_side=True)
    run = ModelRun(model, plan, silent, tmp_path)
    run.run(make_cases(model, [SHAPE]))
    assert len(started) == 2
    each_first_in_turn = [STOCK, EXTENSION, EXTENSION, STOCK, STOCK, EXTENSION]
    assert [each.path for each in run.results] == each_first_in_turn
    assert {r.packed_share for r in run.results if r.path == EXTENSION} == {1.0}
    assert run.gate.agreement[f"micro {SHAPE}"].holds


def test_gpu(model: Path, tmp_path: Path, started: list[list[str]]) -> None:
    options = ("--model", str(model), "--dtype", "float32", "--shape", str(SHAPE))
    counts = ("--clients", "2", "--token-clients", "1", "--seconds", "0.01", "--alternations", "1")
    commands = Commands(tmp_path)
    commands.run(gpu_command.main, *options, *counts, "--results", str(tmp_path))
    assert len(started) == 2
    lines = commands.lines("gpu")
    assert {(each["path"], each["shape"]) for each in lines} == {
        (path, shape) for path in BOTH for shape in (str(SHAPE), "0+128x1")
    }
    assert all(each["packed_share"] == (each["path"] == EXTENSION) for each in lines)
    profiles = commands.record("gpu-profile")
    loads = [(each["path"], each["shape"], each["clients"]) for each in profiles]
    assert loads == [(STOCK, str(SHAPE), 2), (EXTENSION, str(SHAPE), 2)]
    assert all(each["requests"] >= 12 for each in profiles)
    assert not any(each["kernels"] for each in profiles)  # there is no GPU


def test_decode(model: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (beside, decode_session):
        monkeypatch.setattr(module, "WARM_UP_S", 0.0)
    plan = DecodePlan(
        *(0.0, 1, 3, SHAPE),
        clients=2,
        prompt_tokens=5,
        new_tokens=3,
        share=0.1,
        score_clients=2,
    )
    run = DecodeRun(model, plan, silent)
    run.run()
    assert started[1][-2:] == ["--prefill-only-decode-slowdown", "3"]
    seen = [(each.path, each.phase) for each in run.results]
    phases = ((STOCK, ALONE), (STOCK, OPEN))
    assert seen == [*phases, (EXTENSION, ALONE), (EXTENSION, OPEN), (EXTENSION, SATURATED)]
    for each in run.results:
        assert each.tokens_per_s > 0.0
        assert each.gap_p50_ms <= each.gap_p99_ms
        assert (each.packed_share is None) == (each.path == STOCK)
        if each.phase != OPEN:  # so short a one may see no arrival
            assert (each.items_per_s == 0.0) == (each.phase == ALONE)
    assert len({each.offered_per_s for each in run.results if each.phase == OPEN}) == 1
    assert run.gate.agreement["micro, scores"].holds
    assert run.equal_generations > 16


def test_mixed(model: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed_session, "_MIN_PER_LENGTH", 8)
    monkeypatch.setattr(mixed_session, "_IDLE_PER_TURN", 4)
    run = MixRun(model, MixPlan((3, 9), 0.0, 0.0, 0.5, 2), silent)
    run.run()
    assert len(started) == 4
    seen = [(each.variant, each.load_of) for each in run.results]
    variants = (ONE_A_FORWARD, FCFS, SRPT)
    assert seen == [(STOCK, "stock"), *((v, load_of) for v in variants for load_of in BOTH)]
    for each in run.results:
        assert each.requests >= 16
        assert list(each.idle_ms) == list(each.length_slowdown) == [3, 9]
        assert each.mean_slowdown > 0.0
        shared = each.requests_per_forward
        assert shared is None if each.variant == STOCK else shared is not None and shared >= 1.0
    assert all(agreement.holds for agreement in run.gate.agreement.values())


def test_soak(model: Path, started: list[list[str]]) -> None:
    plan = SoakPlan(3.0, 0.5, SHAPE, 2, saturation_seconds=0.0, every_s=0.5)
    run = SoakRun(model, plan, silent)
    verdict = run.run()
    assert started == [["--enable-prefill-only", "--dtype", "float32"]]
    assert run.rate_per_s > 0
    assert {name.split()[0] for name in run.results[0].memory_mib} >= {"scheduler", "detokenizer"}
    assert 0 <= verdict.long_pauses <= verdict.pauses
    assert set(run.gate.agreement) == {"micro, gate", "micro, saturation", "micro, soak"}


def test_soak_of_a_fleet(model: Path, server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak_subjects, "engines_on", lambda *_: nullcontext([server.port]))
    plan = SoakPlan(2.0, 0.5, SHAPE, 2, saturation_seconds=0.0, every_s=0.5, engines=1)
    run = SoakRun(model, plan, silent)
    verdict = run.run()
    roles = {name.split()[0] for name in run.results[0].memory_mib}
    assert roles >= {"fleet_router", "scheduler", "tokenizer"}
    assert 0 <= verdict.long_pauses <= verdict.pauses
    assert set(run.gate.agreement) == {"micro, gate", "micro, saturation", "micro, soak"}


def test_schedulers(model: Path, started: list[list[str]]) -> None:
    run = SchedulersRun(model, SHAPE, 4, 0.0, silent)
    run.run([1])
    assert [each.schedulers for each in run.results] == [0, 1]
    assert started[1][-2:] == ["--prefill-only-schedulers", "1"]
    for each in run.results:
        assert each.requests >= 20
        assert 0 < each.p50_ms <= each.p99_ms
    stock, one = run.results
    assert (stock.requests_per_forward, stock.predicted_per_s, stock.bound_by) == (None, None, "")
    assert one.requests_per_forward is not None
    assert one.requests_per_forward >= 1.0
    assert one.predicted_per_s is not None
    assert run.gate.agreement["1 scheduler"].holds


def test_decisions(model: Path, tmp_path: Path, started: list[list[str]]) -> None:
    plan = Plan((ClosedLoop(1), ClosedLoop(2)), 0.0, 2, ("--enable-prefill-only",))
    run = ModelRun(model, plan, silent, tmp_path)
    kind = replace(KINDS["token"], prompts=Prompts(1, 0, 2, 3))
    run.gate.compare = partial(compare_numbers, kind)
    run.run([case_of(kind, vocabulary=50)])
    assert len(started) == 4
    seen = [(each.repeat, each.path, each.load) for each in run.results]
    loads_of = ("1 client", "2 clients")
    assert seen == [(n, path, each) for n in range(2) for path in BOTH for each in loads_of]
    assert {each.packed_share for each in run.results if each.path == EXTENSION} == {1.0}
    assert run.gate.agreement["micro 0+2-3x1"].rows > 0


@pytest.mark.parametrize("path", BOTH)
def test_breakdown(model: Path, started: list[list[str]], path: str) -> None:
    pool = http_bodies(Wire.IDS, draw_requests(SHAPE, 1000, 4, seed=0), str)
    (cost,) = live.measure(model, path, [pool], seconds=0.0)
    assert cost.latency_us > 0
    assert cost.cpu_us.keys() == {"front end", "scheduler", "detokenizer"}
    assert (cost.forward_us is not None) == (path == EXTENSION)


def python_loop(port: int, pool: Sequence[bytes], clients: int, seconds: float) -> Measurement:
    """Replaces wrk, which is not installed on every machine."""
    return run_loop(load.closed_loop(port, pool, clients, Window(seconds, 20)))


@pytest.fixture
def generators(
    model: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> GeneratorRun:
    monkeypatch.setattr(wrk, "closed_loop", python_loop)
    return GeneratorRun(model, [SHAPE], [Wire.IDS], [2], 0.0, front_ends=1)


def test_load_generators(generators: GeneratorRun) -> None:
    for path in BOTH:
        generators.measure(path, 0)
    (closed,) = compare_paths(generators.results)
    assert closed.stock.load == "2 clients, ids"
    assert closed.extension.packed_share == 1.0
    assert generators.gate.agreement["5+2x3 ids"].rows >= 3 * 60


def test_requests_that_are_not_packed_end_the_run(
    generators: GeneratorRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    generators.measure(STOCK, 0)
    monkeypatch.setattr("bench.load_generators.session.scheduled_requests", lambda _: 0)
    with pytest.raises(LoadError, match="only 0% of the requests were packed"):
        generators.measure(EXTENSION, 0)
