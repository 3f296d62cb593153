"""Checks that generation and packed requests do not disturb each other."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

from tests.integration.support.client import Client, Json, generate_body
from tests.integration.support.parity import assert_same_answer

PROMPT = [5, 6, 7, 8]
_WORKERS = 5
_COMPARED = 5


def assert_generation_is_undisturbed(client: Client, bodies: list[Json], new_tokens: int) -> None:
    """Generate beside scoring: the same tokens as alone, right scores, and no slot lost."""
    alone = client.generate(PROMPT, new_tokens)
    memory = client.memory()
    with client.counting() as moved, ThreadPoolExecutor(_WORKERS) as pool:
        beside = pool.submit(client.generate, PROMPT, new_tokens)
        answers = list(pool.map(client.score, bodies))
        assert beside.result() == alone
    assert moved["scheduler.requests.ok"] == len(bodies)
    for body, answer in list(zip(bodies, answers, strict=True))[:_COMPARED]:
        assert_same_answer(answer, client.score(body, stock=True))
    client.assert_memory_returns_to(memory)
    assert client.generate(PROMPT, new_tokens) == alone


def stream_request(new_tokens: int) -> Json:
    return generate_body([20, 21, 22], new_tokens) | {"stream": True}


def stream_events(client: Client, new_tokens: int) -> list[Json]:
    with client.http.stream("POST", "/generate", json=stream_request(new_tokens)) as stream:
        lines = [line.removeprefix("data: ") for line in stream.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]
