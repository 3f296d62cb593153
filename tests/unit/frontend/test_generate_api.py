from __future__ import annotations

import json
from typing import Any

import pytest

from sglang_prefill_ext.frontend.generate_api import read_request

ONE_TOKEN = {"max_new_tokens": 1, "temperature": 0}


def read(**fields: Any) -> dict[str, Any] | None:
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
    assert read(**fields) == fields


@pytest.mark.parametrize(
    "fields",
    [
        {"text": "a"},
        {"text": "a", "sampling_params": {}},
        {"text": "a", "sampling_params": {"max_new_tokens": 2}},
        {"text": "a", "sampling_params": {"max_new_tokens": "1"}},
        {"text": "a", "sampling_params": {"max_new_tokens": True}},
        {"text": "a", "sampling_params": {**ONE_TOKEN, "n": 2}},
        {"text": "a", "sampling_params": {**ONE_TOKEN, "regex": "a*"}},
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
