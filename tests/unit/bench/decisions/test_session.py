from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.decisions import session as decision_session
from bench.decisions.kinds import KINDS, Prompts
from bench.decisions.session import AnswerGate, DecisionRun
from bench.gate import GateError
from bench.plan import EXTENSION, STOCK
from tests.unit.bench.servers import Servers
from tests.unit.bench.stand_in import StandIn

KIND = KINDS["embedding"]


def body(*vector: float) -> bytes:
    return json.dumps({"data": [{"embedding": list(vector)}]}).encode()


def test_the_gate_keeps_the_largest_difference() -> None:
    gate = AnswerGate(KIND, tolerance=0.1)
    gate.check({1: body(0.5, 1.0), 2: body(0.0)}, {1: body(0.5, 1.05), 3: body(9.0)})
    gate.check({2: body(0.0)}, {2: body(0.01)})
    assert (gate.compared, gate.largest) == (2, pytest.approx(0.05))


def test_large_numbers_are_compared_relative_to_themselves() -> None:
    gate = AnswerGate(KIND)
    gate.check({1: body(-20.0)}, {1: body(-20.000_01)})
    assert gate.largest == pytest.approx(5e-6)


@pytest.mark.parametrize(
    "extension", [{1: body(0.5, 1.2)}, {1: body(0.5)}, {2: body(0.5, 1.0)}, {1: body(np.nan, 1.0)}]
)
def test_the_gate_is_red_where_answers_differ_or_none_was_compared(
    extension: dict[int, bytes],
) -> None:
    with pytest.raises(GateError):
        AnswerGate(KIND, tolerance=0.1).check({1: body(0.5, 1.0)}, extension)


@pytest.fixture
def servers(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> Servers:
    servers = Servers(stand_in)
    monkeypatch.setattr(decision_session, "MeasuredServer", servers)
    return servers


def measured(directory: Path, how: str) -> DecisionRun:
    prompts = Prompts(1, 0, 2, 3)
    run = DecisionRun(directory, KIND, prompts, [1, 2], 0.05, threads=1, spin=False, by_wrk=False)
    getattr(run, how)(2, prompts.draw(50, seed=0), lambda _: None)
    return run


@pytest.mark.parametrize(("how", "starts"), [("in_turn", 4), ("side_by_side", 2)])
def test_loads_alternate_between_the_servers(
    servers: Servers, tmp_path: Path, how: str, starts: int
) -> None:
    run = measured(tmp_path, how)
    assert len(servers.started) == starts
    seen = [(each.repeat, each.path, each.load) for each in run.results]
    assert seen == [
        (repeat, path, load)
        for repeat in range(2)
        for path in (STOCK, EXTENSION)
        for load in ("1 client", "2 clients")
    ]
    assert run.gate.compared > 0


def test_servers_that_disagree_have_no_figures(
    servers: Servers, stand_in: StandIn, tmp_path: Path
) -> None:
    stand_in.extension_shift = 0.01
    with pytest.raises(GateError):
        measured(tmp_path, "in_turn")
