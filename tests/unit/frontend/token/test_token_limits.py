from __future__ import annotations

import re
from typing import Any

import pytest

from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.token.token_call import (
    check_numbers,
    check_processor,
    check_readout,
)

VOCAB = 50


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"top_logprobs_num": VOCAB},
        {"top_logprobs_num": -1},  # as 0, says SGLang
        {"logprob_start_len": 9_999},  # is compared with the prompt elsewhere
        {"top_k": 2**31 - 1},
        {"top_k": "5"},  # in a greedy call, SGLang does not look at it
    ],
    ids=str,
)
def test_what_there_is_may_be_asked_for(asked: dict[str, Any]) -> None:
    check_numbers(VOCAB, **asked)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"top_logprobs_num": VOCAB + 1}, "top_logprobs_num: 51 is no number up to 50; send one"),
        ({"top_logprobs_num": [3]}, r"top_logprobs_num: \[3\] is no number"),
        ({"top_logprobs_num": None}, "top_logprobs_num: None"),
        ({"logprob_start_len": -2}, "logprob_start_len: -2 is no place in the prompt; send one"),
        ({"logprob_start_len": [0]}, r"logprob_start_len: \[0\] is no place"),
        ({"top_k": 2**31}, f"top_k: {2**31} is too large; send -1"),
    ],
    ids=str,
)
def test_what_there_is_not_is_refused(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words) as refused:
        check_numbers(VOCAB, **asked)
    assert refused.value.field in asked


@pytest.mark.parametrize("positions", [[0], [2, 0, 2]])
def test_positions_inside_a_whole_prompt_pass(positions: list[int]) -> None:
    check_readout(positions, 3, in_one_piece=True)
    check_readout(positions, None, in_one_piece=True)


@pytest.mark.parametrize(
    ("positions", "words"),
    [
        ([], r"\[\] is no list of positions"),
        (1, "1 is no list of positions"),
        ([[1]], r"\[1\] is no position"),
        (["1"], "'1' is no position"),
        ([0, 3], "3 is no position; valid ones are 0 to 2"),
        ([-1], "-1 is no position; valid ones are 0 to 2"),
        ([2**63], f"{2**63} is no position"),
    ],
)
def test_what_is_no_position_is_refused(positions: object, words: str) -> None:
    with pytest.raises(RequestError, match=f"token_indices_to_pool: {words}"):
        check_readout(positions, 3, in_one_piece=True)


def test_positions_are_read_in_whole_prompts_only() -> None:
    with pytest.raises(RequestError, match=r"whole prompts\. Start .* --disable-radix-cache"):
        check_readout([1], 3, in_one_piece=False)
    with pytest.raises(RequestError, match="is no position"):
        check_readout([2**63], None, in_one_piece=False)


@pytest.mark.parametrize("given", [None, '{"callable": "8004 95"}', '{"callable": "", "more": []}'])
def test_processors_that_can_be_read_pass(given: str | None) -> None:
    check_processor(given)


@pytest.mark.parametrize(
    "given",
    [
        *([], ["word"], {}, 5, "", "word", "5", "[]", "{}", "\ud800"),
        *('{"callable": 5}', '{"callable": "word"}', '{"callable": "00", "more": NaN}'),
        '{"callable": "00", "more": ' + "[" * 100_000,
    ],
    ids=lambda given: repr(given)[:20],
)
def test_what_is_no_processor_is_named(given: object) -> None:
    said = f"custom_logit_processor: {given!r:.80} is no processor; send the text of its to_str()"
    with pytest.raises(RequestError, match=re.escape(said)):
        check_processor(given)
