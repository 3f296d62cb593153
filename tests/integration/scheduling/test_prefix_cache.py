"""Scores and generations of one server share one prefix cache."""

from __future__ import annotations

import random

import pytest

from sglang_prefill_ext.frontend.options import KEEP_PREFIX_HEADER
from tests.integration.support.client import Client, Json, random_ids, score_body
from tests.integration.support.parity import assert_same, assert_same_answers

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

QUERY, ITEMS = 200, [5, 7, 3]
ONE_TOKEN = {"max_new_tokens": 1, "temperature": 0}


def send(client: Client, body: Json) -> tuple[Json, int, int]:
    """Return the answer to a packed request, and the tokens computed and cached for it."""
    with client.counting() as moved:
        answer = client.score(body)
    assert moved["frontend.requests.packed"] == 1
    computed, cached = (moved[f"scheduler.tokens_{name}"] for name in ("computed", "cached"))
    assert computed + cached == QUERY + sum(ITEMS)
    return answer, computed, cached


def cached_by_generation(client: Client, ids: list[int]) -> int:
    cached: int = one_token(client, ids, stock=True)["cached_tokens"]
    return cached


def one_token(client: Client, ids: list[int], *, stock: bool) -> Json:
    """Return the `meta_info` of a request for one token."""
    body = {"input_ids": ids, "sampling_params": ONE_TOKEN}
    with client.counting() as moved:
        response = client.post("/generate", body, stock=stock)
    assert response.status_code == 200, response.text
    assert moved["frontend.requests.packed"] == (not stock)
    meta: Json = response.json()["meta_info"]
    return meta


def assert_same_as_stock(client: Client, body: Json, packed: list[Json], log_probs: str) -> None:
    """Compare these log-probs of each prompt with those of SGLang's own path."""
    stock = client.post("/generate", body, stock=True).json()
    for one, other in zip(packed, stock, strict=True):
        assert_same(one["meta_info"][log_probs], other["meta_info"][log_probs])


def completion_details(client: Client, ids: list[int], *, stock: bool) -> Json | None:
    """What `return_cached_tokens_details` shows of a completion."""
    body = {"model": "m", "prompt": ids, "max_tokens": 1, "return_cached_tokens_details": True}
    response = client.post("/v1/completions", body, stock=stock)
    assert response.status_code == 200, response.text
    details: Json | None = (response.json().get("sglext") or {}).get("cached_tokens_details")
    return details


@pytest.mark.parametrize("length", [40, 128, 255])
def test_a_short_prompt_that_comes_again_is_kept_like_stock_keeps_it(
    client: Client, length: int
) -> None:
    rng = random.Random(7_200 + length)
    ours, theirs = random_ids(rng, length), random_ids(rng, length)
    stock = [one_token(client, theirs, stock=True) for _ in range(2)]
    packed = [one_token(client, ours, stock=False) for _ in range(3)]
    assert [each["cached_tokens"] for each in stock] == [0, length - 1]
    assert [each["cached_tokens"] for each in packed] == [0, 0, length - 1]
    assert packed[-1]["cached_tokens_details"] == stock[-1]["cached_tokens_details"]
    shown = [completion_details(client, each, stock=each is theirs) for each in (ours, theirs)]
    assert shown == [{"device": length - 1, "host": 0}] * 2
    # A generation starts where the prompt ends.
    assert cached_by_generation(client, ours) == length - 1
    output = client.generate(ours, 5, stock=True)
    client.flush()
    assert client.generate(ours, 5, stock=True) == output


def test_a_scored_prompt_is_kept_for_generations(client: Client) -> None:
    body = score_body(76, 60, [40])
    prompt = [*body["query"], *body["items"][0]]
    with client.counting() as moved:
        answers = [client.score(body) for _ in range(3)]
    assert moved["scheduler.tokens_cached"] == len(prompt) - 1
    assert cached_by_generation(client, prompt) == len(prompt) - 1
    assert_same_answers(answers, [client.score(body, stock=True)] * 3)


def test_short_prompts_keep_what_they_begin_with_alike(client: Client) -> None:
    rng = random.Random(7_300)
    beginning = random_ids(rng, 64)
    prompts = [beginning + random_ids(rng, 30) for _ in range(4)]
    cached = [one_token(client, each, stock=False)["cached_tokens"] for each in prompts]
    assert cached == [0, 0, 64, 64]
    assert one_token(client, prompts[0], stock=True)["cached_tokens"] == 64


def test_single_prompts_that_come_one_by_one_use_the_cache(client: Client) -> None:
    rng = random.Random(7_101)
    beginning = random_ids(rng, 320)
    cached, outputs = [], []
    for stock in (False, False, False, True):
        prompt = beginning + random_ids(rng, 5)
        body = {"input_ids": prompt, "sampling_params": ONE_TOKEN}
        with client.counting() as moved:
            answer = client.post("/generate", body, stock=stock).json()
        assert moved["frontend.requests.packed"] == (not stock)
        cached.append(answer["meta_info"]["cached_tokens"])
        outputs.append((prompt, answer["output_ids"]))
    # Seen once, then kept, then used; and SGLang's own requests find it, too.
    assert cached == [0, 0, 320, 320]
    for prompt, output in outputs:
        assert client.generate(prompt, 1, stock=True) == output


def test_a_repeated_query_is_computed_once_more_and_then_cached(client: Client) -> None:
    client.flush()
    before = client.memory()
    body = score_body(71, QUERY, ITEMS)
    answers, _, cached = zip(*(send(client, body) for _ in range(4)), strict=True)
    assert cached == (0, 0, QUERY, QUERY)
    assert _evictable(client) == QUERY
    client.assert_memory_returns_to(before)
    stock = client.score(body, stock=True)
    assert_same_answers(answers, [stock] * len(answers))


def test_a_marked_query_is_cached_at_once(client: Client) -> None:
    before = client.memory()
    body = score_body(75, QUERY, ITEMS)
    with client.counting() as moved:
        marked = client.http.post("/v1/score", json=body, headers={KEEP_PREFIX_HEADER: "on"})
    assert moved["scheduler.tokens_cached"] == 0
    answer, computed, cached = send(client, body)
    assert (computed, cached) == (sum(ITEMS), QUERY)
    assert_same_answers([marked.json()], [answer])
    refused = client.http.post("/v1/score", json=body, headers={KEEP_PREFIX_HEADER: "maybe"})
    assert refused.status_code == 400
    assert KEEP_PREFIX_HEADER in refused.text
    client.assert_memory_returns_to(before)


def test_generations_find_what_scores_have_cached(client: Client) -> None:
    client.flush()
    body = score_body(72, QUERY, ITEMS)
    assert cached_by_generation(client, body["query"][:QUERY]) == 0
    client.flush()
    for _ in range(2):
        send(client, body)
    assert cached_by_generation(client, [*body["query"], 5, 6]) == QUERY
    assert client.generate(body["query"], 5) == _uncached(client, body["query"])


def test_log_probs_of_choices_find_the_prompt_that_they_complete(client: Client) -> None:
    """As `select` of SGLang's language asks for them."""
    rng = random.Random(7_900)
    prompt = random_ids(rng, 100)
    client.generate(prompt, 1, stock=True)
    body = {
        "input_ids": [prompt + random_ids(rng, length) for length in (1, 2, 3)],
        "sampling_params": {"max_new_tokens": 0},
        "return_logprob": True,
        "logprob_start_len": len(prompt) - 2,
    }
    with client.counting() as moved:
        packed = client.post("/generate", body).json()
    assert moved["scheduler.tokens_cached"] == len(prompt) - 2
    assert_same_as_stock(client, body, packed, "input_token_logprobs")


def test_prompts_of_one_request_find_what_each_had_in_common_with_earlier_ones(
    client: Client,
) -> None:
    """Questions about passages that return, all with the same instructions."""
    rng = random.Random(7_910)
    instructions = random_ids(rng, 40)
    passages = [instructions + random_ids(rng, 200) for _ in range(3)]
    cached = []
    for _ in range(3):
        prompts = [passage + random_ids(rng, 10) for passage in passages]
        body = {"input_ids": prompts, "sampling_params": ONE_TOKEN, "return_logprob": True}
        with client.counting() as moved:
            packed = client.post("/generate", body).json()
        cached.append(moved["scheduler.tokens_cached"])
    assert cached == [0, 0, sum(map(len, passages))]
    assert_same_as_stock(client, body, packed, "output_token_logprobs")


def test_scores_find_what_generations_have_cached(client: Client) -> None:
    client.flush()
    body = score_body(73, QUERY, ITEMS)
    first, _, cached = send(client, body)
    assert cached == 0
    client.generate(body["query"], 1, stock=True)
    second, computed, cached = send(client, body)
    assert (computed, cached) == (sum(ITEMS), QUERY)
    assert_same_answers([second], [first])


def test_flushing_empties_it(client: Client) -> None:
    body = score_body(74, QUERY, ITEMS)
    assert [send(client, body)[2] for _ in range(3)] == [0, 0, QUERY]
    client.flush()
    assert _evictable(client) == 0
    # That the query was seen before is not forgotten, so it is stored at once.
    assert [send(client, body)[2] for _ in range(2)] == [0, QUERY]
    client.flush()
    assert _evictable(client) == 0


def _evictable(client: Client) -> int:
    slots: int = client.scheduler()["memory"]["kv_slots_evictable"]
    return slots


def _uncached(client: Client, ids: list[int]) -> list[int]:
    client.flush()
    return client.generate(ids, 5)
