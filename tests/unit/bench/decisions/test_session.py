from __future__ import annotations

import json

import numpy as np
import pytest

from bench.decisions.kinds import KINDS
from bench.decisions.session import AnswerGate
from bench.gate import GateError

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
