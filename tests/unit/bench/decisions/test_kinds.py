from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from bench.decisions.kinds import KINDS, Prompts, numbers_of


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
    assert numbers_of(KINDS[name], json.dumps(answer).encode()).tolist() == numbers
