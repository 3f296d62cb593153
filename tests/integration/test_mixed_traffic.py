"""Generation and packed requests side by side: right answers, and neither starves the other."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.client import Client, Json, score_body
from tests.integration.load import steady_load
from tests.integration.parity import assert_same_answer, assert_same_answers

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


def test_a_generation_goes_on_while_packed_requests_are_always_queued(client: Client) -> None:
    steps = 100
    with steady_load(client, BODY, workers=6) as answers:
        before, answered = client.scheduler(), len(answers)
        events = stream_events(client, steps)
        after = client.scheduler()
        forwards = after["counters"]["forwards"] - before["counters"]["forwards"]
        assert len(answers) > answered
    assert events[-1]["meta_info"]["completion_tokens"] == steps
    # A decode step allows less than a forward costs, so at most every second one waits for a
    # forward; the slack is what runs while the requests of this test itself travel.
    assert 0 < forwards <= steps / 2 + 50
    ran = {
        name: after["iterations"][name]["iterations"] - before["iterations"][name]["iterations"]
        for name in ("decode", "mixed")
    }
    assert ran["decode"] >= steps / 2 - 10
    assert ran["mixed"] > 0


def test_both_paths_of_scoring_side_by_side(client: Client, pool: ThreadPoolExecutor) -> None:
    bodies = [score_body(seed, 30 * seed, [5 + seed] * 12) for seed in range(1, 7)]
    with client.counting() as moved:
        packed = [pool.submit(client.score, body) for body in bodies]
        stock = [pool.submit(client.score, body, stock=True) for body in bodies]
        for one, other in zip(packed, stock, strict=True):
            assert_same_answer(one.result(), other.result())
    assert moved["frontend.requests.packed"] == len(bodies)
    assert moved["frontend.fallbacks.opted_out"] == len(bodies)


def stream_request(new_tokens: int) -> Json:
    sampling = {"max_new_tokens": new_tokens, "temperature": 0, "ignore_eos": True}
    return {"input_ids": [20, 21, 22], "sampling_params": sampling, "stream": True}


def stream_events(client: Client, new_tokens: int) -> list[Json]:
    with client.http.stream("POST", "/generate", json=stream_request(new_tokens)) as stream:
        lines = [line.removeprefix("data: ") for line in stream.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]
