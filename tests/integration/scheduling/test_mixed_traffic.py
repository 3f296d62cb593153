"""Generation and packed requests side by side: right answers, and neither starves the other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.support.client import Client, score_body
from tests.integration.support.generation import stream_request
from tests.integration.support.load import steady_load
from tests.integration.support.parity import assert_same_answer, assert_same_answers

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

PROMPTS = [[20, 21, 22], [500] * 40, list(range(100, 400)), [7_000, 6_000, 5_000]]
NEW_TOKENS = 64
BODY = score_body(1, 100, [20] * 20)


def test_generations_are_the_same_beside_packed_requests(
    client: Client, pool: ThreadPoolExecutor
) -> None:
    alone = [client.generate(prompt, NEW_TOKENS) for prompt in PROMPTS]
    wanted = client.score(BODY)
    with steady_load(client, BODY) as answers:
        beside = list(pool.map(client.generate, PROMPTS, [NEW_TOKENS] * len(PROMPTS)))
    assert beside == alone
    assert_same_answers(answers, [wanted] * len(answers))


def test_packed_requests_are_answered_while_a_generation_runs(client: Client) -> None:
    wanted = client.score(BODY)
    with client.http.stream("POST", "/generate", json=stream_request(4_000)) as stream:
        lines = stream.iter_lines()
        next(lines)
        assert [client.score(BODY) for _ in range(10)] == [wanted] * 10
        assert '"finish_reason":null' in next(line for line in lines if line)


def test_both_paths_of_scoring_side_by_side(client: Client, pool: ThreadPoolExecutor) -> None:
    bodies = [score_body(seed, 30 * seed, [5 + seed] * 12) for seed in range(1, 7)]
    with client.counting() as moved:
        packed = [pool.submit(client.score, body) for body in bodies]
        stock = [pool.submit(client.score, body, stock=True) for body in bodies]
        for one, other in zip(packed, stock, strict=True):
            assert_same_answer(one.result(), other.result())
    assert moved["frontend.requests.packed"] == len(bodies)
    assert moved["frontend.fallbacks.opted_out"] == len(bodies)
