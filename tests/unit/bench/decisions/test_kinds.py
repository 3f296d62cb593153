from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from bench.decisions.kinds import KINDS, Prompts, case_of, compare_numbers, numbers_of
from bench.gate import TOLERANCE, GateError
from bench.score.score_gate import ScoreGate


def test_lengths_are_spread_from_end_to_end() -> None:
    requests = Prompts(2, 5, 3, 6).draw(vocabulary=100, seed=1)
    lengths = [len(prompt) - 5 for prompts in requests for prompt in prompts]
    assert set(lengths) == {3, 4, 5, 6}
    assert np.bincount(lengths)[3:].min() > len(lengths) / 8
    assert all(first[:5] == second[:5] for first, second in requests)
    assert all(16 <= token < 100 for prompts in requests for prompt in prompts for token in prompt)
    assert requests == Prompts(2, 5, 3, 6).draw(vocabulary=100, seed=1)


def test_bodies_ask_for_what_the_kind_is_about() -> None:
    one, two = [[7, 8, 9]], [[7, 8, 9], [7, 8, 6]]
    assert KINDS["embedding"].body(one, 0)["input"] == one[0]
    assert KINDS["token"].body(one, 0)["sampling_params"]["max_new_tokens"] == 1
    assert KINDS["grammar"].body(one, 0)["sampling_params"]["regex"] == "(yes|no)"
    body = KINDS["logprobs"].body(two, 2)
    assert (body["input_ids"], body["logprob_start_len"]) == (two, 1)
    assert KINDS["logprobs"].body(one, 0)["logprob_start_len"] == 0


@pytest.mark.parametrize(
    ("name", "answer", "numbers"),
    [
        ("embedding", {"data": [{"embedding": [0.5, 1]}, {"embedding": [2]}]}, [0.5, 1, 2]),
        ("token", {"meta_info": {"output_token_logprobs": [[-0.5, 7, None]]}}, [-0.5, 7]),
        (
            "logprobs",
            [{"meta_info": {"input_token_logprobs": [[None, 1, None], [-2.0, 5, None]]}}] * 2,
            [-2.0, -2.0],
        ),
    ],
)
def test_numbers_are_those_that_are_compared(name: str, answer: Any, numbers: list[float]) -> None:
    found = numbers_of(KINDS[name], json.dumps(answer).encode(), TOLERANCE["float32"])
    assert found.tolist() == numbers


def test_in_half_precision_another_token_may_be_as_likely() -> None:
    def answer(token_id: int) -> dict[int, bytes]:
        meta = {"output_token_logprobs": [[-0.5, token_id, None]]}
        return {1: json.dumps({"meta_info": meta}).encode()}

    for dtype in ("bfloat16", "float32"):
        gate = ScoreGate(dtype, partial(compare_numbers, KINDS["token"]))
        gate.keep("some", answer(7))
        with pytest.raises(GateError) if dtype == "float32" else nullcontext():
            gate.check("all", "some", answer(8))


@pytest.mark.parametrize(("name", "counted"), [("embedding", 1), ("logprobs", 3)])
def test_a_case_has_whole_requests(name: str, counted: int) -> None:
    case = case_of(replace(KINDS[name], prompts=Prompts(3, 5, 2, 2)), vocabulary=100)
    assert (str(case.shape), case.shape.items, case.counted) == ("5+2x3", 3, counted)
    assert len({*case.pool, *case.gate}) == 256
    assert all(each.startswith(f"POST {KINDS[name].path} ".encode()) for each in case.pool)


def body(*vector: float) -> bytes:
    return json.dumps({"data": [{"embedding": list(vector)}]}).encode()


def gate_of(stock: dict[int, bytes], dtype: str = "float32") -> ScoreGate:
    gate = ScoreGate(dtype, partial(compare_numbers, KINDS["embedding"]))
    gate.keep("some", stock)
    return gate


def test_the_gate_keeps_the_largest_difference() -> None:
    gate = gate_of({1: body(0.5, 1.0), 2: body(0.0)}, "bfloat16")
    gate.check("all", "some", {1: body(0.5, 1.01), 3: body(9.0)})
    gate.check("all", "some", {2: body(0.002)})
    seen = gate.agreement["all"]
    assert (seen.rows, seen.largest_logprob) == (2, pytest.approx(0.01))


def test_large_numbers_are_compared_relative_to_themselves() -> None:
    gate = gate_of({1: body(-20.0)})
    gate.check("all", "some", {1: body(-20.000_01)})
    assert gate.agreement["all"].largest_logprob == pytest.approx(5e-6)


@pytest.mark.parametrize(
    "extension", [{1: body(0.5, 1.2)}, {1: body(0.5)}, {2: body(0.5, 1.0)}, {1: body(np.nan, 1.0)}]
)
def test_the_gate_is_red_where_answers_differ_or_none_was_compared(
    extension: dict[int, bytes],
) -> None:
    with pytest.raises(GateError):
        gate_of({1: body(0.5, 1.0)}).check("all", "some", extension)
