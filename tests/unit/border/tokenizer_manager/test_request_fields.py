from __future__ import annotations

from typing import Any

import pytest

from sglang_prefill_ext.border.tokenizer_manager.request_fields import (
    HEALTH_CHECK,
    ineligible_token_reason,
    is_decision,
)
from tests.unit.frontend.token.token_requests import tokenized

LOGPROBS: dict[str, Any] = {"return_logprob": True}


@pytest.mark.parametrize(
    ("sampling", "fields", "expected"),
    [
        ({}, {}, True),
        ({"max_new_tokens": 2}, {}, False),
        ({"max_new_tokens": None}, {}, False),
        ({"max_new_tokens": 0}, {}, False),
        ({"max_new_tokens": 0}, LOGPROBS, True),
        ({"n": 2}, {}, False),
        ({}, {"rid": f"{HEALTH_CHECK}_1"}, False),
    ],
)
def test_decisions_are_told_from_generations(
    sampling: dict[str, Any], fields: dict[str, Any], expected: bool
) -> None:
    request = tokenized([1], sampling=sampling, **fields)
    assert is_decision(request, request.sampling_params) is expected


def reason_of(
    request: Any,
    *,
    has_adapters: bool = True,
    filters_reasoning: bool = False,
) -> str | None:
    return ineligible_token_reason(
        request,
        has_adapters=has_adapters,
        filters_reasoning=filters_reasoning,
    )


@pytest.mark.parametrize(
    ("sampling", "fields", "reason"),
    [
        ({}, {}, None),
        ({"top_k": 5}, {}, None),
        ({"logit_bias": {"1": 2.0}}, {}, None),
        ({"regex": "a"}, {}, None),
        ({"regex": "a"}, {"require_reasoning": True}, "grammar"),
        ({"stop_strs": ["a"]}, {}, None),
        ({"stop_regex_strs": ["a"]}, {}, "stop_regex"),
        ({"stop_regex_strs": []}, {}, None),
        ({"beam_width": 3}, {}, "beam_search"),
        ({}, {"lora_id": "x"}, None),
        ({}, {"input_embeds": [[0.0]]}, "embed_overrides"),
        ({}, {"cache_salt": "x"}, "cache_namespace"),
        ({}, {"routed_dp_rank": 0}, "routed_dp_rank"),
        ({}, {"return_hidden_states": True}, "hidden_states"),
        ({}, LOGPROBS | {"logprob_start_len": 4}, "unusual_input"),
        ({}, LOGPROBS | {"logprob_start_len": 3}, None),
        ({}, LOGPROBS | {"top_logprobs_num": -1}, "unusual_input"),
    ],
    ids=str,
)
def test_what_changes_the_answer_is_not_packed(
    sampling: dict[str, Any], fields: dict[str, Any], reason: str | None
) -> None:
    request = tokenized([1, 2, 3], sampling=sampling, **fields)
    found = reason_of(request)
    assert found == reason


def test_an_adapter_of_a_server_that_has_none_is_left_to_sglang() -> None:
    request = tokenized([1, 2, 3], lora_id="x")
    assert reason_of(request, has_adapters=False) == "unusual_input"


@pytest.mark.parametrize("filters", [False, True])
def test_reasoning_is_packed_unless_sglang_filters_its_tokens(filters: bool) -> None:
    request = tokenized([1, 2, 3], require_reasoning=True)
    found = reason_of(request, filters_reasoning=filters)
    assert found == ("reasoning" if filters else None)


GRAMMAR_FIELDS = ("json_schema", "regex", "ebnf", "structural_tag")


@pytest.mark.parametrize("field", GRAMMAR_FIELDS)
@pytest.mark.parametrize("reasons", [False, True])
def test_a_grammar_is_packed_if_it_holds_from_the_first_token_on(field: str, reasons: bool) -> None:
    request = tokenized([1, 2, 3], sampling={field: "a"}, require_reasoning=reasons)
    assert reason_of(request) == ("grammar" if reasons else None)
