from __future__ import annotations

from typing import Any

import pytest

from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.token_limits import TokenNumbers

VOCAB = 50


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"top_logprobs_num": VOCAB},
        {"top_logprobs_num": -1},  # as 0, says SGLang
        {"logprob_start_len": 9_999},  # is compared with the prompt elsewhere
        {"top_k": 2**31 - 1},
        {"min_new_tokens": 1, "stop_token_ids": [0, VOCAB - 1]},
        {"stop_token_ids": [-1, VOCAB]},
    ],
    ids=str,
)
def test_what_there_is_may_be_asked_for(asked: dict[str, Any]) -> None:
    TokenNumbers(**asked).check(VOCAB)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"top_logprobs_num": VOCAB + 1}, "top_logprobs_num: 51 is no number up to 50; send one"),
        ({"top_logprobs_num": [3]}, r"top_logprobs_num: \[3\] is no number"),
        ({"top_logprobs_num": None}, "top_logprobs_num: None"),
        ({"logprob_start_len": -2}, "logprob_start_len: -2 is no place in the prompt; send one"),
        ({"logprob_start_len": [0]}, r"logprob_start_len: \[0\] is no place"),
        ({"top_k": 2**31}, f"top_k: {2**31} is too large; send -1"),
        (
            {"min_new_tokens": 1, "stop_token_ids": [3, -1]},
            "stop_token_ids: -1 beside min_new_tokens; valid ids are 0 to 49",
        ),
        ({"min_new_tokens": 2, "stop_token_ids": {VOCAB}}, "stop_token_ids: 50"),
    ],
    ids=str,
)
def test_what_there_is_not_is_refused(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words) as refused:
        TokenNumbers(**asked).check(VOCAB)
    assert refused.value.field in asked
