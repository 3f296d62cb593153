"""Rows of scoring calls that come again are found in the prefix cache, with the same answers."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.support.client import LABELS, Client, Json, random_ids, score_body
from tests.integration.support.parity import assert_same_answers

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

ITEM = 410
"""Tokens of an item, so many that a group of its own pays however long a launch took at start."""


def computed(client: Client, body: Json) -> tuple[Json, int]:
    """Return the answer to a packed scoring call, and the tokens computed for it."""
    with client.counting() as moved:
        answer = client.score(body)
    assert moved["frontend.requests.packed"] == moved["scheduler.requests.ok"] == 1
    return answer, moved["scheduler.tokens_computed"]


def test_a_call_that_comes_again_computes_the_ends_of_its_rows(client: Client) -> None:
    client.flush()
    before = client.memory()
    body = score_body(8_100, 200, [ITEM] * 4)
    answers, tokens = zip(*(computed(client, body) for _ in range(4)), strict=True)
    left = (200 + ITEM) % 4
    # Seen; then the query is stored; then the rows, too; then all is found.
    assert tokens == (200 + 4 * ITEM, 200 + 4 * ITEM, 4 * ITEM, 4 * left)
    client.assert_memory_returns_to(before)
    client.flush()
    assert_same_answers(answers, [client.score(body, stock=True)] * 4)


def test_items_in_front_of_other_queries_are_found(client: Client) -> None:
    client.flush()
    rng = random.Random(8_200)
    items = [random_ids(rng, ITEM) for _ in range(6)]
    bodies = [
        {
            "query": random_ids(rng, length),
            "items": [items[item] for item in chosen],
            "label_token_ids": LABELS,
            "item_first": True,
            "return_token_logprobs": True,
        }
        for length, chosen in ((7, [0, 1, 2]), (12, [2, 3, 0]), (17, [0, 3, 2, 4]))
    ]
    answers, tokens = zip(*(computed(client, body) for body in bodies), strict=True)
    # The second call stores items 0 and 2. The third one finds them, stores 3, and 4 is new.
    assert tokens[:2] == (3 * (ITEM + 7), 3 * (ITEM + 12))
    assert tokens[2] == 2 * (ITEM % 4 + 17) + 2 * (ITEM + 17)
    client.flush()
    assert_same_answers(answers, [client.score(body, stock=True) for body in bodies])


def test_calls_with_the_same_rows_at_the_same_time_lose_nothing(client: Client) -> None:
    client.flush()
    before = client.memory()
    rng = random.Random(8_400)
    items = [random_ids(rng, rng.randint(300, ITEM)) for _ in range(8)]
    queries = [random_ids(rng, 30) for _ in range(2)]
    bodies = [
        {"query": rng.choice(queries), "items": rng.sample(items, 5), "label_token_ids": LABELS}
        for _ in range(40)
    ]
    with client.counting() as moved, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(client.score, bodies))
    assert moved["frontend.requests.packed"] == len(bodies)
    assert moved["scheduler.tokens_cached"] > 0
    client.assert_memory_returns_to(before)
    client.flush()
    assert_same_answers(answers, [client.score(body, stock=True) for body in bodies])
