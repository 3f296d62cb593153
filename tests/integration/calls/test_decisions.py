"""`/v1/decisions` is packed too: one request for all questions, the same answers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.support.client import Client, Json
from tests.integration.support.parity import TOLERANCE, assert_refused_alike

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

CHOICE = {
    "id": "animal",
    "type": "choice",
    "question": "Which animal is it?",
    "options": [
        {"name": "cat"},
        {"name": "dog", "description": "It barks. 犬 😀"},
        {"name": "cow"},
    ],
}
SCORE = {
    "id": "mood",
    "type": "score",
    "question": "How pleasant is this?",
    "levels": ["bad", "neutral", "good", "splendid"],
}
INPUTS = ["A cat sat on the mat.", {"title": "猫", "lines": ["one", "two"]}, "word " * 2_000]


def decide(client: Client, body: Json, *, stock: bool = False) -> Json:
    response = client.post("/v1/decisions", body, stock=stock)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


def assert_close(found: Any, wanted: Any) -> None:
    """Equal in structure and text; numbers within the tolerance."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for key, value in wanted.items():
            assert_close(found[key], value)
    elif isinstance(wanted, float):
        # An expected level is a sum of up to four probabilities times their levels.
        assert found == pytest.approx(wanted, rel=0, abs=6 * TOLERANCE)
    else:
        assert found == wanted


@pytest.mark.parametrize("questions", [[CHOICE], [SCORE], [CHOICE, SCORE]])
@pytest.mark.parametrize("given", INPUTS, ids=["text", "object", "long-text"])
def test_packed_and_stock_agree(client: Client, given: Any, questions: list[Json]) -> None:
    body = {"input": given, "questions": questions, "temperature": 0.7}
    with client.counting() as moved:
        packed = decide(client, body)
        stock = decide(client, body, stock=True)
    assert moved["frontend.requests.packed"] == 1
    assert moved["frontend.items"] == len(questions)
    assert moved["frontend.fallbacks.opted_out"] == 1
    assert_close(packed, stock)


def test_the_prompts_that_come_back_score_the_same(client: Client) -> None:
    body = {"input": "A text.", "questions": [CHOICE, SCORE], "return_prompt_token_ids": True}
    answers = decide(client, body)["answers"]
    for question in (CHOICE, SCORE):
        answer = answers[question["id"]]
        replay = {
            "query": answer["prompt_token_ids"],
            "items": [[]],
            "label_token_ids": answer["label_token_ids"],
            "apply_softmax": True,
        }
        (scores,) = client.score(replay)["scores"]
        assert list(answer["probabilities"].values()) == pytest.approx(scores, abs=TOLERANCE)


@pytest.mark.parametrize(
    "body",
    [
        {"input": "A text.", "questions": []},
        {"input": "", "questions": [CHOICE]},
        {"input": "A text.", "questions": [CHOICE, CHOICE]},
        {"input": "A text.", "questions": [CHOICE], "temperature": 0},
        {"input": "word " * 40_000, "questions": [CHOICE]},
    ],
    ids=["no-questions", "no-input", "same-id-twice", "temperature", "too-long"],
)
def test_wrong_requests_are_refused_alike(client: Client, body: Json) -> None:
    assert_refused_alike(client, "/v1/decisions", body)
