from __future__ import annotations

import json

import pytest

from bench.gate import GateError
from bench.score.score_gate import ScoreGate


def body(probability: float) -> bytes:
    return json.dumps({"scores": [[probability, 1 - probability]]}).encode()


def test_agreement_is_merged_by_what_was_compared() -> None:
    gate = ScoreGate("float32")
    gate.keep("timed", {0: body(0.1)})
    gate.keep("timed", {1: body(0.2)})
    gate.check("one", "timed", {0: body(0.1), 1: body(0.2)})
    gate.check("one", "timed", {1: body(0.200001)})
    gate.check("other", "timed", {1: body(0.2), 7: body(0.9)})
    assert {what: seen.rows for what, seen in gate.agreement.items()} == {"one": 3, "other": 1}
    assert gate.agreement["one"].largest_probability == pytest.approx(1e-6)


def test_another_answer_is_red_by_the_tolerance_of_the_dtype() -> None:
    for dtype in ("float32", "bfloat16"):
        gate = ScoreGate(dtype)
        gate.keep("timed", {0: body(0.1)})
        if dtype == "bfloat16":
            gate.check("one", "timed", {0: body(0.101)})
            continue
        with pytest.raises(GateError, match="one, timed requests"):
            gate.check("one", "timed", {0: body(0.101)})
        assert gate.agreement == {}


def test_nothing_to_compare_with_is_red() -> None:
    gate = ScoreGate("float32")
    gate.keep("gate", {0: body(0.1)})
    with pytest.raises(GateError, match="0 rows"):
        gate.check("one", "timed", {0: body(0.1)})


def test_in_half_precision_stock_may_show_how_far_its_own_answers_differ() -> None:
    gate = ScoreGate("bfloat16")
    gate.keep("timed", {0: body(0.1)})
    gate.keep("timed", {0: body(0.14)})
    gate.check("one", "timed", {0: body(0.195)})
    assert gate.agreement["one"].tolerance == pytest.approx(1.5 * 0.04)
    with pytest.raises(GateError, match=r"tolerance 0\.06"):
        gate.check("one", "timed", {0: body(0.205)})
    gate.keep("other", {0: body(0.14)})
    with pytest.raises(GateError, match=r"tolerance 0\.02"):
        gate.check("one", "other", {0: body(0.195)})


def test_in_float32_stock_does_not_widen_the_tolerance() -> None:
    gate = ScoreGate("float32")
    gate.keep("timed", {0: body(0.1)})
    gate.keep("timed", {0: body(0.14)})
    with pytest.raises(GateError, match="tolerance 1e-05"):
        gate.check("one", "timed", {0: body(0.141)})
