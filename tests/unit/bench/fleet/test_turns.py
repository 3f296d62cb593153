from __future__ import annotations

import json

import pytest

from bench.fleet.turns import TurnResult, Turns, compare_turns
from bench.gate import GateError
from bench.http_client import post_bytes
from bench.score.plan import Case
from bench.workloads import Shape, draw_requests, score_body
from tests.unit.bench.stand_in import StandIn

SHAPE = Shape(3, 2, 4)


def _case() -> Case:
    requests = draw_requests(SHAPE, 100, 5, seed=0)
    pool = [post_bytes("/v1/score", score_body(each)) for each in requests]
    return Case(SHAPE, 1.0, pool, [])


def _result(subject: str, turn: int, p50_ms: float, requests_per_s: float) -> TurnResult:
    return TurnResult(
        "tiny", "3+2x4", 1, subject, turn, 3, requests_per_s, p50_ms - 1, p50_ms, p50_ms, 0.0
    )


def test_subjects_take_turns_in_either_order(stand_in: StandIn) -> None:
    told: list[str] = []
    run = Turns("tiny", {"one": stand_in.port, "other": stand_in.port}, 0.0, 2, told.append)
    run.run([_case()], [1, 3])
    assert [line.rpartition(": ")[2] for line in told] == ["one", "other", "other", "one"] * 2
    assert [(each.clients, each.subject, each.turn) for each in run.results[:4]] == [
        (1, "one", 0),
        (1, "other", 0),
        (1, "other", 1),
        (1, "one", 1),
    ]
    assert all(each.requests >= max(3, each.clients) for each in run.results)
    assert run.gate.agreement["other"].holds
    assert {each.parts_per_request for each in run.results} == {0.0}


def test_other_answers_end_the_run(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    answered: list[bytes] = []

    def score(body: bytes) -> bytes:
        answered.append(body)
        first = 0.1 if len(answered) <= 4 else 0.4
        items = json.loads(body)["items"]
        return json.dumps({"scores": [[first, 1 - first] for _ in items]}).encode()

    monkeypatch.setattr(stand_in, "_score", score)
    run = Turns("tiny", {"one": stand_in.port, "other": stand_in.port}, 0.0, 1, str)
    with pytest.raises(GateError, match=r"other, 3\+2x4"):
        run.run([_case()], [1])


def test_ratios_are_those_of_neighbours() -> None:
    results = [
        _result("one", 0, 10, 100),
        _result("other", 0, 5, 150),
        _result("other", 1, 10, 300),
        _result("one", 1, 40, 100),
        _result("one", 2, 12, 100),
        _result("other", 2, 4, 200),
    ]
    one, other = compare_turns(results, "one")
    assert (one.faster, one.more) == ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0))
    assert other.faster == (3.0, 2.0, 4.0)
    assert other.more == (2.0, 1.5, 3.0)
    assert (other.least_ms, other.p50_ms, other.requests_per_s) == (3, 5, 200)
    assert str(other).startswith("3.00x (2.00 to 4.00) P50, 2.00x (1.50 to 3.00) requests/s: 3+2x4")
