from __future__ import annotations

import json

import numpy as np
import pytest

from bench.embed import EmbeddingGate, draw_prompts
from bench.gate import GateError


def body(*vector: float) -> bytes:
    return json.dumps({"data": [{"embedding": list(vector)}]}).encode()


def test_lengths_are_spread_from_end_to_end() -> None:
    prompts = draw_prompts(3, 6, vocabulary=100, seed=1)
    lengths = [len(prompt) for prompt in prompts]
    assert set(lengths) == {3, 4, 5, 6}
    assert np.bincount(lengths)[3:].min() > len(prompts) / 8
    assert all(16 <= token < 100 for prompt in prompts for token in prompt)
    assert prompts == draw_prompts(3, 6, vocabulary=100, seed=1)


def test_the_gate_keeps_the_largest_difference() -> None:
    gate = EmbeddingGate(tolerance=0.1)
    gate.check({1: body(0.5, 1.0), 2: body(0.0)}, {1: body(0.5, 1.05), 3: body(9.0)})
    gate.check({2: body(0.0)}, {2: body(0.01)})
    assert (gate.compared, gate.largest) == (2, pytest.approx(0.05))


@pytest.mark.parametrize(
    "extension", [{1: body(0.5, 1.2)}, {1: body(0.5)}, {2: body(0.5, 1.0)}, {1: body(np.nan, 1.0)}]
)
def test_the_gate_is_red_where_vectors_differ_or_none_was_compared(
    extension: dict[int, bytes],
) -> None:
    with pytest.raises(GateError):
        EmbeddingGate(tolerance=0.1).check({1: body(0.5, 1.0)}, extension)
