from __future__ import annotations

import math
from typing import Any

import pytest

from sglang_prefill_ext.frontend.token.first_tokens import FirstTokens
from sglang_prefill_ext.frontend.token.token_call import token_call_of
from sglang_prefill_ext.wire.arrays import int_array
from tests.unit.frontend.token.token_requests import tokenized

LOGPROBS: dict[str, Any] = {"return_logprob": True}


@pytest.mark.parametrize(("asked", "start"), [(-1, None), (0, 0), (2, 2), (3, None)])
def test_a_call_reads_from_where_log_probs_start(asked: int, start: int | None) -> None:
    call = token_call_of(tokenized([1, 2, 3], **LOGPROBS, logprob_start_len=asked), ())
    assert call.start == start
    assert call.ids.tolist() == [1, 2, 3]


def test_what_is_not_returned_is_not_read() -> None:
    fields = {"logprob_start_len": 0, "top_logprobs_num": 3, "token_ids_logprob": [5]}
    call = token_call_of(tokenized([1, 2, 3], **fields), ())
    assert (call.start, call.num_top, call.token_ids) == (None, 0, None)


def test_a_call_is_computed_with_its_adapter() -> None:
    adapters = [token_call_of(tokenized([1], lora_id=each), ()).adapter for each in (None, "x")]
    assert adapters == ["", "x"]


@pytest.mark.parametrize(
    ("new_tokens", "fields", "num_best"),
    [
        (1, {}, 1),
        (1, LOGPROBS | {"top_logprobs_num": 4}, 5),
        (0, LOGPROBS | {"logprob_start_len": 0}, 0),
        (0, LOGPROBS | {"token_ids_logprob": [5]}, 0),
        (0, LOGPROBS | {"top_logprobs_num": 2}, 3),
        (0, LOGPROBS, 1),
    ],
)
def test_best_tokens_are_read_where_they_are_needed(
    new_tokens: int, fields: dict[str, Any], num_best: int
) -> None:
    request = tokenized([1, 2], sampling={"max_new_tokens": new_tokens}, **fields)
    assert token_call_of(request, ()).num_best == num_best


@pytest.mark.parametrize(
    "sampling", [{}, {"max_new_tokens": 0, "top_k": 5, "temperature": 2.0}, {"logit_bias": {}}]
)
def test_what_is_not_drawn_is_not_sampled(sampling: dict[str, Any]) -> None:
    assert token_call_of(tokenized([1], sampling=sampling), {2}).sampling is None


def test_a_call_draws_as_its_parameters_say() -> None:
    asked = {"temperature": 0.1, "top_p": 0.7, "min_p": 0.2, "top_k": 5, "sampling_seed": -9}
    sampling = token_call_of(tokenized([1], sampling=asked), {2}).sampling
    (draw,) = sampling.draws
    names = {name: draw[name].item() for name in ("temperature", "top_p", "min_p", "top_k")}
    assert names | {"sampling_seed": draw["seed"].item()} == asked
    assert not len(sampling.biases)
    unseeded = token_call_of(tokenized([1], sampling={"top_k": 5}), ()).sampling
    assert unseeded.draws["seed"].tolist() == [42]


@pytest.mark.parametrize("new_tokens", [0, 1])
def test_biases_and_forbidden_stop_tokens_change_also_the_most_probable_token(
    new_tokens: int,
) -> None:
    # "5" and "05" name one token; SGLang takes the later one.
    asked = {"logit_bias": {"5": 1.0, "05": 2.5, "7": 3.0}, "max_new_tokens": new_tokens}
    asked |= {"min_new_tokens": new_tokens}
    listed = LOGPROBS | {"token_ids_logprob": [5]}
    call = token_call_of(tokenized([1], sampling=asked, **listed), {7, 8})
    forbidden = [(7, -math.inf), (8, -math.inf)] if new_tokens else [(7, 3.0)]
    assert sorted(call.sampling.biases.tolist()) == [(5, 2.5), *forbidden]
    assert call.sampling.draws["top_k"].tolist() == [1]
    assert call.num_best == 1


@pytest.mark.parametrize(
    "sampling", [{}, {"top_k": 5, "temperature": 0.5}], ids=["greedy", "drawn"]
)
def test_a_grammar_forbids_all_tokens_but_some(sampling: dict[str, Any]) -> None:
    request = tokenized([1], sampling=sampling | {"logit_bias": {"5": 1.0, "6": 2.0}})
    found = token_call_of(request, (), FirstTokens(int_array([5, 9]), allowed=True)).sampling
    assert found.biases.tolist() == [(5, 1.0), (9, 0.0)]
    assert found.draws["other_bias"].tolist() == [-math.inf]


def test_a_grammar_forbids_some_tokens() -> None:
    request = tokenized([1], sampling={"logit_bias": {"5": 1.0, "6": 2.0}})
    found = token_call_of(request, (), FirstTokens(int_array([5, 9]), allowed=False)).sampling
    assert sorted(found.biases.tolist()) == [(5, -math.inf), (6, 2.0), (9, -math.inf)]
    assert found.draws["other_bias"].tolist() == [0.0]


def test_a_grammar_does_not_allow_a_forbidden_stop_token() -> None:
    request = tokenized([1], sampling={"min_new_tokens": 1})
    found = token_call_of(request, {7}, FirstTokens(int_array([5, 7]), allowed=True)).sampling
    assert found.biases.tolist() == [(5, 0.0), (7, -math.inf)]
