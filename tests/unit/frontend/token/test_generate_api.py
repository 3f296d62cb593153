from __future__ import annotations

import json
from typing import Any

import pytest

from sglang_prefill_ext.frontend.token.generate_api import (
    GenerateBody,
    answer_body,
    logprob_fields,
    read_request,
    sampling_arguments,
)
from sglang_prefill_ext.frontend.token.token_answer import TokenAnswer

ONE_TOKEN = {"max_new_tokens": 1, "temperature": 0}


def read(**fields: Any) -> GenerateBody | None:
    return read_request(json.dumps(fields).encode())


@pytest.mark.parametrize(
    "fields",
    [
        {"text": "a b", "sampling_params": ONE_TOKEN},
        {"text": ["a", "ÿ 東京"], "sampling_params": {"max_new_tokens": 0}},
        {"input_ids": [5, 0, 7], "sampling_params": ONE_TOKEN, "rid": "r"},
        {"input_ids": [[5], [7, 8]], "sampling_params": ONE_TOKEN, "stream": True},
        {"text": "a", "sampling_params": ONE_TOKEN, "lora_path": "adapter"},
        {"input_ids": [-1, 2**63 - 1], "sampling_params": ONE_TOKEN},  # for SGLang to refuse
        {"sampling_params": {**ONE_TOKEN, "top_p": 0.5, "top_k": 3, "min_p": 0.1}},
        {"text": "a", "sampling_params": {"max_new_tokens": 1, "temperature": -1, "top_p": 2}},
        {"text": "a", "sampling_params": {"max_new_tokens": 1, "temperature": -1.0, "min_p": 2}},
        {"text": "a", "sampling_params": {**ONE_TOKEN, "sampling_seed": 7, "ignore_eos": True}},
        {
            "text": "a",
            "sampling_params": ONE_TOKEN,
            "return_logprob": True,
            "logprob_start_len": 0,
            "top_logprobs_num": 2,
            "token_ids_logprob": [4, 5],
            "return_text_in_logprobs": False,
        },
    ],
    ids=str,
)
def test_plain_requests_are_read(fields: dict[str, Any]) -> None:
    found = read(**fields)
    assert found is not None
    assert json.dumps(found.arguments(), sort_keys=True) == json.dumps(fields, sort_keys=True)


@pytest.mark.parametrize(
    "sampling",
    [
        {"max_new_tokens": 0},
        ONE_TOKEN | {"temperature": 0.1, "top_p": 1 / 3, "min_p": 0.25, "top_k": 2**40},
        ONE_TOKEN | {"sampling_seed": -(2**63), "ignore_eos": False, "no_stop_trim": True},
        ONE_TOKEN | {"skip_special_tokens": True, "spaces_between_special_tokens": False},
        ONE_TOKEN | {"regex": "a*"},
        ONE_TOKEN | {"json_schema": "{}", "ebnf": "a", "structural_tag": "[]"},
    ],
    ids=str,
)
def test_sampling_parameters_are_told_apart_by_their_key(sampling: dict[str, Any]) -> None:
    found, other = (
        read(text="a", sampling_params=sampling),
        read(text="b", sampling_params=sampling),
    )
    plain = read(text="a", sampling_params=ONE_TOKEN)
    assert found is not None
    assert other is not None
    assert plain is not None
    assert sampling_arguments(found.sampling_key) == sampling
    assert found.sampling_key == other.sampling_key != plain.sampling_key


@pytest.mark.parametrize(
    "fields",
    [
        {"text": "a"},
        {"text": "a", "sampling_params": {}},
        {"text": "a", "sampling_params": {"max_new_tokens": 2}},
        {"text": "a", "sampling_params": {"max_new_tokens": "1"}},
        {"text": "a", "sampling_params": {"max_new_tokens": True}},
        {"text": "a", "sampling_params": {**ONE_TOKEN, "n": 2}},
        {"text": "a", "sampling_params": {**ONE_TOKEN, "regex": ["a*"]}},
        {"text": "a", "sampling_params": {**ONE_TOKEN, "json_schema": {}}},
        {"text": "a", "sampling_params": {**ONE_TOKEN, "temperature": None}},
        {"text": "a", "sampling_params": [ONE_TOKEN]},
        {"text": None, "sampling_params": ONE_TOKEN},
        {"input_ids": [], "sampling_params": ONE_TOKEN},
        {"input_ids": [1, [2]], "sampling_params": ONE_TOKEN},
        {"input_ids": [1.5], "sampling_params": ONE_TOKEN},
        {"input_ids": [2**63], "sampling_params": ONE_TOKEN},
        {"input_ids": [1, True], "sampling_params": ONE_TOKEN},
        {"text": "a", "sampling_params": ONE_TOKEN, "return_logprob": [True]},
        {"text": "a", "sampling_params": ONE_TOKEN, "rid": ["r"]},
        {"text": "a", "sampling_params": ONE_TOKEN, "lora_path": ["adapter"]},
        {"text": "a", "sampling_params": ONE_TOKEN, "unheard_of": 1},
    ],
    ids=str,
)
def test_everything_else_is_left_to_sglang(fields: dict[str, Any]) -> None:
    assert read(**fields) is None


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'{"text": "\xff"}', b"\x00" * 8, b"null"])
def test_what_is_no_json_object_is_left_to_sglang(body: bytes) -> None:
    assert read_request(body) is None


@pytest.mark.parametrize(
    ("prompts", "single", "wanted"),
    [
        ({"input_ids": [5, 6]}, True, [[5, 6]]),
        ({"input_ids": [[5], [6, 7]]}, False, [[5], [6, 7]]),
        ({"text": "a"}, True, ["a"]),
        ({"text": ["a"]}, False, ["a"]),
    ],
)
def test_the_prompts_of_a_body(prompts: dict[str, Any], single: bool, wanted: list[Any]) -> None:
    body = read(**prompts, sampling_params=ONE_TOKEN)
    assert body is not None
    assert body.is_single is single
    assert body.prompts == wanted
    assert body.needs_no_request_state


@pytest.mark.parametrize(
    "fields",
    [
        {"rid": "r"},
        {"rid": ""},
        {"stream": True},
        {"lora_path": ""},
        {"return_logprob": True, "return_text_in_logprobs": True},
        {"text": "a"},  # beside the ids
        {"sampling_params": {"max_new_tokens": 0}},  # only to leave its prefix in the cache
    ],
    ids=str,
)
def test_what_sglang_has_to_know_of(fields: dict[str, Any]) -> None:
    body = read(**{"input_ids": [5, 6], "sampling_params": ONE_TOKEN} | fields)
    assert body is not None
    assert not body.needs_no_request_state


def test_of_an_adapter_sglang_need_not_know() -> None:
    body = read(input_ids=[5, 6], sampling_params=ONE_TOKEN, lora_path="adapter")
    assert body is not None
    assert body.needs_no_request_state


@pytest.mark.parametrize("fields", [{}, {"text": []}])
def test_there_must_be_prompts(fields: dict[str, Any]) -> None:
    body = read(**fields, sampling_params=ONE_TOKEN)
    assert body is not None
    assert not body.needs_no_request_state


def test_log_probs_of_a_prompt_alone_need_no_token() -> None:
    fields = {"return_logprob": True, "stream": False, "return_text_in_logprobs": False}
    body = read(input_ids=[5], sampling_params={"max_new_tokens": 0}, **fields)
    assert body is not None
    assert body.needs_no_request_state
    assert body.wants_logprobs


def test_log_probs_are_written_as_sglang_does() -> None:
    answer = TokenAnswer(
        token=7,
        input_token_logprobs_val=[None, -0.5],
        input_token_logprobs_idx=[5, 6],
        output_token_logprobs_val=[-1.5],
        output_token_logprobs_idx=[7],
        input_top_logprobs_val=[None, [-0.5]],
        input_top_logprobs_idx=[None, [6]],
        output_top_logprobs_val=[[-1.5]],
        output_top_logprobs_idx=[[7]],
        output_token_ids_logprobs_val=[[-2.0, -3.0]],
        output_token_ids_logprobs_idx=[[3, 4]],
    )
    plain = {
        "input_token_logprobs": [(None, 5, None), (-0.5, 6, None)],
        "output_token_logprobs": [(-1.5, 7, None)],
        "output_token_logprobs_length": 1,
    }
    assert logprob_fields(answer, num_top=0, token_ids=None) == plain
    assert logprob_fields(answer, num_top=1, token_ids=(3, 4)) == plain | {
        "input_top_logprobs": [None, [(-0.5, 6, None)]],
        "output_top_logprobs": [[(-1.5, 7, None)]],
        "input_token_ids_logprobs": [],
        "output_token_ids_logprobs": [[(-2.0, 3, None), (-3.0, 4, None)]],
    }


def test_many_log_probs_are_the_same_json() -> None:
    for count in (16, 17, 33, 4096, 4097):
        answer = TokenAnswer(
            input_token_logprobs_val=[None, *[-0.5] * (count - 1)],
            input_token_logprobs_idx=list(range(count)),
            input_top_logprobs_val=[None, *[[-0.5]] * (count - 1)],
            input_top_logprobs_idx=[None, *[[number] for number in range(1, count)]],
        )
        fields = logprob_fields(answer, num_top=1, token_ids=None)
        written = json.loads(answer_body([fields], is_single=True))
        wanted = [[-0.5 if number else None, number, None] for number in range(count)]
        assert written["input_token_logprobs"] == wanted
        assert written["input_top_logprobs"] == [None, *([each] for each in wanted[1:])]


def test_a_list_of_prompts_has_a_list_of_answers() -> None:
    assert answer_body([{"text": "a"}], is_single=True) == b'{"text":"a"}'
    assert answer_body([{"text": "a"}], is_single=False) == b'[{"text":"a"}]'
