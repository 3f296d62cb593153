"""Compares the answers of both paths of one server."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from bench.gate import difference
from tests.integration.support.client import Client, Json, random_ids, score_body

TOLERANCE = 1e-5
"""Largest difference in probability and in log-prob, in float32 on the CPU."""


def from_both(client: Client, path: str, body: Json) -> tuple[Any, Any]:
    """The answers of the packed and of the stock path, which must have been taken."""
    with client.counting() as moved:
        packed = client.post(path, body)
        stock = client.post(path, body, stock=True)
    assert (packed.status_code, stock.status_code) == (200, 200), (packed.text, stock.text)
    assert moved["frontend.requests.packed"] == 1
    assert moved["scheduler.requests.ok"] >= 1
    assert fallbacks(moved) == {"frontend.fallbacks.opted_out": 1}
    return packed.json(), stock.json()


def fallbacks(moved: Json) -> Json:
    """What was counted of requests that took the stock path."""
    return {name: count for name, count in moved.items() if count and ".fallbacks." in name}


def assert_paths_agree(client: Client, body: Json) -> Json:
    """Send a scoring `body` down both paths, compare the answers, and return the packed one."""
    packed, stock = from_both(client, "/v1/score", body)
    assert_same_answer(packed, stock)
    answer: Json = packed
    return answer


def assert_refused_alike(client: Client, path: str, body: Json) -> str:
    """Assert that both paths answer 400 in the same words; return these."""
    packed, stock = (client.post(path, body, stock=stock) for stock in (False, True))
    assert packed.status_code == stock.status_code == 400
    assert packed.json() == stock.json()
    return packed.text


def assert_a_divided_request_agrees(client: Client) -> None:
    """Assert that a request over the budget holds its prefix between forwards, and leaves nothing.

    The server computes at most 64 tokens a forward.
    """
    before = client.memory()
    with client.counting() as moved:
        assert_paths_agree(client, score_body(3, 150, [9, 12, 7, 30]))
    assert moved["scheduler.forwards"] > 3
    client.assert_memory_returns_to(before)


def assert_returning_rows_agree(client: Client, item: int) -> None:
    """Assert that items in front of other queries are found from their third call on.

    Args:
        item: tokens of each one, a multiple of 4; more than a sixteenth of what a launch costs.
    """
    client.flush()
    before, rng = client.memory(), random.Random(33)
    items = [random_ids(rng, item) for _ in range(4)]
    bodies = [score_body(each, 5, [], items=items, item_first=True) for each in range(34, 38)]
    with client.counting() as moved:
        answers = [client.score(body) for body in bodies]
    assert moved["scheduler.tokens_computed"] == 4 * (2 * (item + 5) + 2 * 5)
    client.assert_memory_returns_to(before)
    client.flush()
    assert_same_answers(answers, [client.score(body, stock=True) for body in bodies])


def assert_same(found: Any, wanted: Any, where: str = "") -> None:
    """Assert that values are equal, apart from what differs from call to call, and numbers within
    the tolerance."""
    said = difference(found, wanted, where)
    assert not said, said


def assert_same_ranking(found: list[Json], wanted: list[Json]) -> None:
    """Answers of /v1/rerank: documents of about the same score may change places.

    SGLang's own scores of equal documents differ in the last bits. So `top_n` may leave out another
    of them, too.
    """
    rankings = [[each["score"] for each in ranked] for ranked in (found, wanted)]
    assert all(scores == sorted(scores, reverse=True) for scores in rankings)
    assert_same(*rankings)
    own, other = ({each["index"]: each for each in ranked} for ranked in (found, wanted))
    assert len(own) == len(found)
    for number in own.keys() & other.keys():
        assert_same(own[number], other[number])


def both(
    client: Client,
    path: str,
    body: Json,
    packed_requests: int = 1,
    *,
    compare: Callable[[Any, Any], None] = assert_same,
) -> Any:
    """Return the packed answer, which must equal stock's; the packed path must have been taken.

    Args:
        compare: asserts that they are equal.
    """
    with client.counting() as moved:
        packed = client.post(path, body)
        assert packed.status_code == 200, packed.text
    assert moved["frontend.requests.packed"] == packed_requests
    assert fallbacks(moved) == {}
    stock = client.post(path, body, stock=True)
    assert stock.status_code == 200, stock.text
    compare(packed.json(), stock.json())
    return packed.json()


def assert_same_response(found: httpx.Response, wanted: httpx.Response) -> None:
    """Assert that both are the same answer up to the tolerance, or the same error byte by byte."""
    assert found.status_code == wanted.status_code, (found.text, wanted.text)
    if found.status_code == 200:
        assert_same(found.json(), wanted.json())
    else:
        assert found.content == wanted.content


def assert_tokens_agree(client: Client, seed: int) -> None:
    """Assert that both paths give the same log-probs and next tokens of two prompts that begin
    alike."""
    rng = random.Random(seed)
    beginning = random_ids(rng, 50)
    body = {
        "input_ids": [beginning + random_ids(rng, length) for length in (3, 20)],
        "sampling_params": {"max_new_tokens": 1, "temperature": 0},
        "return_logprob": True,
        "logprob_start_len": 40,
        "top_logprobs_num": 2,
    }
    packed, stock = (client.post("/generate", body, stock=stock) for stock in (False, True))
    assert (packed.status_code, stock.status_code) == (200, 200), (packed.text, stock.text)
    assert_same(packed.json(), stock.json())


def assert_same_answer(found: Json, wanted: Json) -> None:
    """Assert that numbers agree within the tolerance, items have the same order, all else is equal.

    Also for one request that is sent twice: other requests in its forward change the last bits.
    """
    numbers = {"scores", "token_logprobs"}
    assert {k: found[k] for k in found.keys() - numbers} == {
        k: wanted[k] for k in wanted.keys() - numbers
    }
    for name in numbers:
        _assert_close(found[name], wanted[name])


def assert_same_answers(found: Iterable[Json], wanted: Iterable[Json]) -> None:
    """`assert_same_answer` for each pair; there must be equally many of both."""
    for one, other in zip(found, wanted, strict=True):
        assert_same_answer(one, other)


def assert_same_ranks(values: NDArray[np.float64], wanted: NDArray[np.float64]) -> None:
    """Assert that no two items that differ by more than the tolerance swap ranks; ``[items]``."""
    gaps = wanted[:, None] - wanted[None, :]
    apart = np.abs(gaps) > TOLERANCE
    found = values[:, None] - values[None, :]
    assert np.array_equal(np.sign(found)[apart], np.sign(gaps)[apart])


def _assert_close(found: list[list[float]] | None, wanted: list[list[float]] | None) -> None:
    if found is None or wanted is None:
        assert found is wanted
        return
    assert [len(row) for row in found] == [len(row) for row in wanted]
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE)
    if len({len(row) for row in found}) == 1:
        for a, b in zip(np.transpose(found), np.transpose(wanted), strict=True):
            assert_same_ranks(a, b)
