"""Single tokens of answers to a grammar are packed: the same as stock's, for every language."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.integration.support.client import Client, Json, random_ids
from tests.integration.support.parity import (
    assert_refused_alike,
    assert_same,
    assert_same_response,
    both,
    fallbacks,
)

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

RNG = random.Random(81)
SHARED = random_ids(RNG, 40)
PROMPTS = [SHARED + random_ids(RNG, length) for length in (1, 9, 30)]
GREEDY = {"max_new_tokens": 1, "temperature": 0}
YES_OR_NO = {"enum": ["yes", "no"]}
TAG = {
    "type": "structural_tag",
    "format": {"type": "tag", "begin": "yes", "content": {"type": "any_text"}, "end": "no"},
}
GRAMMARS: list[Json] = [
    {"regex": "(yes|no)"},
    {"regex": "[A-E]"},
    {"regex": "[0-9]+"},
    {"regex": "a?"},
    {"regex": "[^a].*"},
    {"ebnf": 'root ::= "yes" | "no"'},
    {"json_schema": json.dumps(YES_OR_NO)},
    {"structural_tag": json.dumps(TAG)},
]
LOG_PROBS = {
    "return_logprob": True,
    "logprob_start_len": 30,
    "top_logprobs_num": 2,
    "token_ids_logprob": [5, 70],
}


SAME = ("finish_reason", "prompt_tokens", "completion_tokens", "reasoning", "input_", "output_")
"""Beginnings of the names in `meta_info` that do not stand for times or counts of the cache."""


def assert_same_tokens(packed: Any, stock: Any) -> None:
    """Assert that answers of /generate are the same, apart from times and counts of the cache."""
    if isinstance(stock, list):
        for one, other in zip(packed, stock, strict=True):
            assert_same_tokens(one, other)
        return
    for answer in (packed, stock):
        for name in [each for each in answer["meta_info"] if not each.startswith(SAME)]:
            del answer["meta_info"][name]
    assert_same(packed, stock)


@pytest.mark.parametrize("grammar", GRAMMARS, ids=str)
def test_tokens_of_a_grammar_are_those_of_stock(client: Client, grammar: Json) -> None:
    body = {"sampling_params": GREEDY | grammar}
    for fields in (
        {"input_ids": PROMPTS},
        {"input_ids": PROMPTS[1], **LOG_PROBS},
        {"text": "a red shoe"},
        {"input_ids": PROMPTS[2], "rid": "named"},
    ):
        prompts = len(PROMPTS) if fields.get("input_ids") is PROMPTS else 1
        both(client, "/generate", body | fields, prompts, compare=assert_same_tokens)


@pytest.mark.parametrize(
    "more",
    [
        {"logit_bias": {"70": 4.0, "5": 4.0}},
        {"min_new_tokens": 1},
        {"temperature": 0.6},
        {"temperature": 2.0, "top_k": 1},
        {"ignore_eos": True},
        {"stop": ["b", "y"]},
    ],
    ids=str,
)
@pytest.mark.parametrize("grammar", [{"regex": "a?"}, {"regex": "[^a].*"}], ids=str)
def test_a_grammar_goes_with_other_parameters(client: Client, grammar: Json, more: Json) -> None:
    def without_the_draw(packed: Any, stock: Any) -> None:
        drawn = more.get("temperature") == 0.6
        for answer in (packed, stock) if drawn else ():
            for name in ("output_ids", "text"):
                del answer[name]
            for name in ("output_token_logprobs", "finish_reason"):
                del answer["meta_info"][name]
        assert_same_tokens(packed, stock)

    body = {"input_ids": PROMPTS[1], "sampling_params": GREEDY | grammar | more} | LOG_PROBS
    both(client, "/generate", body, compare=without_the_draw)


CHAT = {"messages": [{"role": "user", "content": "Is it a shoe?"}], "model": "m", "temperature": 0}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", CHAT | {"regex": "(yes|no)"}),
        ("/v1/chat/completions", CHAT | {"regex": "(yes|no)", "logprobs": True, "top_logprobs": 3}),
        ("/v1/chat/completions", CHAT | {"ebnf": 'root ::= "yes" | "no"'}),
        (
            "/v1/chat/completions",
            CHAT
            | {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "schema": YES_OR_NO},
                }
            },
        ),
        ("/v1/chat/completions", CHAT | {"response_format": {"type": "json_object"}}),
        ("/v1/chat/completions", CHAT | {"response_format": TAG}),
        (
            "/v1/completions",
            {"prompt": "a red shoe", "model": "m", "temperature": 0, "regex": "[A-E]"},
        ),
    ],
    ids=lambda given: str(sorted(given)) if isinstance(given, dict) else given,
)
def test_openai_routes_answer_as_stock(client: Client, path: str, fields: Json) -> None:
    both(client, path, fields | {"max_tokens": 1})


def test_a_stream_is_stocks(client: Client) -> None:
    sampling = GREEDY | {"regex": "(yes|no)"}
    body = {"input_ids": PROMPTS[0], "sampling_params": sampling, "stream": True}
    with client.counting() as moved:
        packed = client.post("/generate", body)
    assert moved["frontend.requests.packed"] == 1
    stock = client.post("/generate", body, stock=True)
    found, wanted = (
        json.loads(each.text.splitlines()[0].removeprefix("data: ")) for each in (packed, stock)
    )
    assert_same_tokens(found, wanted)


@pytest.mark.parametrize(
    "grammar",
    [{"regex": "("}, {"json_schema": "{"}, {"ebnf": "root"}, {"structural_tag": "[]"}],
    ids=str,
)
def test_a_wrong_grammar_is_refused_in_stocks_words(client: Client, grammar: Json) -> None:
    body = {"input_ids": PROMPTS[0], "sampling_params": GREEDY | grammar}
    for _ in range(2):
        packed, stock = (client.post("/generate", body, stock=stock) for stock in (False, True))
        assert packed.status_code >= 400
        assert_same_response(packed, stock)
    assert len(client.generate(PROMPTS[0], 1)) == 1


def test_two_grammars_are_refused_in_stocks_words(client: Client) -> None:
    sampling = GREEDY | {"regex": "a", "ebnf": 'root ::= "a"'}
    body = {"input_ids": PROMPTS[0], "sampling_params": sampling}
    assert "Only one of" in assert_refused_alike(client, "/generate", body)


def test_calls_with_different_grammars_share_forwards(client: Client) -> None:
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    bodies = [
        {"input_ids": PROMPTS[1], "sampling_params": GREEDY | {"regex": each}} for each in letters
    ]
    with client.counting() as moved, ThreadPoolExecutor(len(letters)) as pool:
        replies = list(pool.map(lambda body: client.post("/generate", body), bodies))
    assert [reply.json()["text"] for reply in replies] == letters
    assert moved["frontend.requests.packed"] == len(letters)
    assert fallbacks(moved) == {}
