from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from bench.decisions import session as decision_session
from bench.decisions.kinds import KINDS, Prompts
from bench.decisions.session import AnswerGate, DecisionRun
from bench.gate import GateError
from bench.plan import EXTENSION, STOCK
from tests.unit.bench.servers import Running, Servers
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


def measured(directory: Path, how: str, *, apart: bool = False) -> DecisionRun:
    prompts, clients, seconds = Prompts(1, 0, 2, 3), [1, 2], 0.05
    run = DecisionRun(
        directory, KIND, prompts, clients, seconds, threads=1, spin=False, apart=apart, by_wrk=False
    )
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


@pytest.mark.parametrize(("how", "placed"), [("in_turn", [[7]] * 4), ("side_by_side", [[7, 7]])])
@pytest.mark.parametrize("apart", [True, False])
def test_schedulers_are_kept_apart_if_that_is_asked_for(
    servers: Servers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    placed: list[list[int]],
    apart: bool,
) -> None:
    seen: list[list[int]] = []

    @contextmanager
    def keep_apart(pids: list[int]) -> Iterator[None]:
        seen.append(pids)
        yield

    monkeypatch.setattr(Running, "pids", [7])
    monkeypatch.setattr(decision_session, "scheduler_apart", keep_apart)
    measured(tmp_path, how, apart=apart)
    assert seen == (placed if apart else [])


def test_servers_that_disagree_have_no_figures(
    servers: Servers, stand_in: StandIn, tmp_path: Path
) -> None:
    stand_in.extension_shift = 0.01
    with pytest.raises(GateError):
        measured(tmp_path, "in_turn")
