"""The command lines of both experiments, with the measurement replaced by a stand-in."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest

from bench.decode import __main__ as decode
from bench.decode.plan import ALONE, OPEN, SATURATED
from bench.decode.session import DecodeRun
from bench.gate import Agreement, GateError
from bench.mixed import __main__ as mixed
from bench.mixed.mix import FCFS
from bench.mixed.session import MixRun
from bench.score.plan import EXTENSION, STOCK
from tests.unit.bench.commands import Commands
from tests.unit.bench.results import decode_result, mix_result

GREEN = Agreement(100, 1e-7, 2e-7, 0, 1e-5)


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.command.make_model", lambda preset, directory: directory)
    monkeypatch.setattr(MixRun, "run", _mix)
    monkeypatch.setattr(DecodeRun, "run", _decode)


def _mix(run: MixRun) -> None:
    fcfs = mix_result(FCFS, longest_p99_ms=200.0)
    run.results += [mix_result(STOCK, longest_p99_ms=400.0, requests_per_forward=None), fcfs]
    run.gate.agreement[FCFS] = GREEN


def _decode(run: DecodeRun) -> None:
    for repeat in range(run.plan.alternations):
        for path in (STOCK, EXTENSION):
            for phase in run.plan.phases(path):
                share = 0.5 if path == EXTENSION else None
                result = decode_result(path, phase, repeat=repeat, packed_share=share)
                run.results.append(replace(result, items_per_s=50.0))
    run.gate.agreement["timed"] = GREEN
    run.equal_generations = 77


def test_mixed_prints_and_keeps_its_record(commands: Commands) -> None:
    output = commands.run(mixed.main, "--length", "32", "--length", "128", "--name", "here")
    assert "95% of stock" in output
    assert "gate green: fcfs: 100 rows" in output
    lines = commands.record("here")
    assert [line["variant"] for line in lines] == [STOCK, FCFS]
    assert lines[0]["plan"]["lengths"] == [32, 128]
    assert lines[0]["command"][:3] == ["python", "-m", "bench.mixed"]
    assert {"commit", "machine", "gate"} <= lines[0].keys()


@pytest.mark.parametrize(("slowdown", "warned"), [(0.9, True), (1.0, False)])
def test_mixed_warns_of_a_disturbed_idle_server(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, slowdown: float, warned: bool
) -> None:
    def disturbed(run: MixRun) -> None:
        _mix(run)
        run.results[-1] = replace(run.results[-1], length_slowdown={32: slowdown, 128: 4.0})

    monkeypatch.setattr(MixRun, "run", disturbed)
    assert ("something disturbed the idle server" in commands.run(mixed.main)) is warned


def test_decode_prints_and_keeps_its_record(commands: Commands) -> None:
    output = commands.run(decode.main, "--name", "here", "--alternations", "1")
    assert "saturated: pace, of the share of time" in output
    assert "gate green: 77 generations equal" in output
    lines = commands.record("here")
    assert [(line["path"], line["phase"]) for line in lines] == [
        *((STOCK, phase) for phase in (ALONE, OPEN)),
        *((EXTENSION, phase) for phase in (ALONE, OPEN, SATURATED)),
    ]
    assert lines[0]["plan"]["shape"] == {"query_tokens": 60, "item_tokens": 2, "items": 50}
    assert lines[0]["gate"]["equal_generations"] == {"count": 77}
    assert lines[0]["command"][:3] == ["python", "-m", "bench.decode"]


@pytest.mark.parametrize(("command", "run"), [(mixed, MixRun), (decode, DecodeRun)])
def test_red_gate_prints_no_figure_and_keeps_none(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, command: ModuleType, run: type
) -> None:
    def disagree(_: object) -> None:
        raise GateError("stock and extension disagree")

    monkeypatch.setattr(run, "run", disagree)
    output = commands.run(command.main, status=1)
    assert "No figures: stock and extension disagree" in output
    assert not commands.results.exists()
