"""Wrong scoring requests: the same refusal on both paths, and nothing else is disturbed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from tests.integration.support.client import OPT_OUT, Client, Json, score_body
from tests.integration.support.parity import assert_paths_agree, assert_same_answers

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

GOOD: Json = {"query": [10, 11], "items": [[12], [13, 14]], "label_token_ids": [5, 9]}
NO_ITEMS: list[Json] = [{"items": []}, {"query": "text", "items": ""}, {"items": [], "query": None}]

# SGLang's own validation, whose words both paths repeat.
REFUSED_BY_SGLANG: dict[str, Json] = {
    "items-missing": {"items": None},
    "items-flat": {"items": [1, 2]},
    "items-nested": {"items": [[[1]]]},
    "items-mixed": {"items": ["a", [1]]},
    "items-with-null": {"items": [[1], None]},
    "items-object": {"items": {"a": 1}},
    "items-fractions": {"items": [[1.5]]},
    "items-beyond-64-bits": {"items": [[2**70]]},
    "query-number": {"query": 3},
    "query-mixed": {"query": [1, "a"]},
    "ids-query-text-items": {"items": ["a", "b"]},
    "labels-missing": {"label_token_ids": None},
    "labels-empty": {"label_token_ids": []},
    "labels-twice": {"label_token_ids": [5, 5]},
    "labels-negative": {"label_token_ids": [-1]},
    "labels-at-the-vocabulary": {"label_token_ids": [8_000]},
    "labels-beyond-64-bits": {"label_token_ids": [2**70]},
    "labels-fractions": {"label_token_ids": [1.5]},
    "labels-text": {"label_token_ids": "5"},
    "labels-null": {"label_token_ids": [None]},
    "labels-mixed": {"label_token_ids": [[5], 9]},
    "labels-too-few": {"label_token_ids": [[5]]},
    "labels-one-empty": {"label_token_ids": [[5], []]},
    "labels-one-beyond": {"label_token_ids": [[5], [9_000]]},
    "temperature-zero": {"temperature": 0, "apply_softmax": True},
    "temperature-negative": {"temperature": -1, "apply_softmax": True},
    "temperature-text": {"temperature": "hot", "apply_softmax": True},
    "temperature-without-softmax": {"temperature": 0.5},
    "softmax-text": {"apply_softmax": "maybe"},
    "too-long-ids": {"query": [7] * 33_000},
    "too-long-by-one-token": {"query": [7] * 32_766, "items": [[1]]},
    "too-long-text": {"query": "a b " * 33_000, "items": ["x"]},
    "pooled-hidden-states": {"return_pooled_hidden_states": True},
}

# Refused by the extension with its own message: on a plain server they end the scheduler, or
# there is no such limit.
REFUSED_BY_US: dict[str, tuple[Json, str]] = {
    "no-tokens": ({"query": [], "items": [[], [3]]}, "The prompt is empty"),
    "no-text": ({"query": "", "items": ["", "a"]}, "The prompt is empty"),
    "no-query-no-text": ({"query": None, "items": [""]}, "The prompt is empty"),
    "id-negative": ({"query": [-4]}, "out-of-vocabulary token id -4; valid ids are 0 to 7999"),
    "id-at-the-vocabulary": ({"items": [[12], [8_000]]}, "out-of-vocabulary token id 8000"),
    "id-beyond-32-bits": ({"query": [2**32]}, f"out-of-vocabulary token id {2**32}"),
    "id-beyond-63-bits": ({"query": [2**63]}, f"out-of-vocabulary token id {2**63}"),
    "too-many-label-lists": (
        {"label_token_ids": [[5]] * 401},
        "label_token_ids: 401 lists exceed the limit of 400",
    ),
    "too-many-items": ({"items": [[5]] * 401}, "401 items exceed the limit of 400"),
}

# Unusual, but SGLang accepts them.
ACCEPTED: dict[str, Json] = {
    "labels-as-digits": {"label_token_ids": ["5"]},
    "labels-as-truth": {"label_token_ids": [True]},
    "ids-as-truth": {"query": [True, False]},
    "unknown-field": {"no_such_field": 1},
    "text-query-ids-items": {"query": "abc"},
    "smallest-temperature": {"temperature": 1e-300, "apply_softmax": True},
}


def both(client: Client, fields: Json) -> tuple[tuple[int, Any], tuple[int, Any]]:
    """Status and answer of the packed and of the stock path."""
    replies = [client.post("/v1/score", GOOD | fields, stock=stock) for stock in (False, True)]
    packed, stock = ((reply.status_code, reply.json()) for reply in replies)
    return packed, stock


@pytest.fixture(autouse=True)
def _still_answers(client: Client) -> Iterator[None]:
    yield
    assert_paths_agree(client, GOOD)


@pytest.mark.parametrize("fields", NO_ITEMS, ids=["ids", "text", "no-query"])
def test_no_items_have_no_scores(client: Client, fields: Json) -> None:
    for wanted in ({}, {"return_token_logprobs": True}):
        packed, stock = both(client, fields | wanted)
        assert packed == stock
        assert (packed[0], packed[1]["scores"]) == (200, [])


@pytest.mark.parametrize("name", REFUSED_BY_SGLANG)
def test_what_sglang_refuses_is_refused_in_its_words(client: Client, name: str) -> None:
    packed, stock = both(client, REFUSED_BY_SGLANG[name])
    assert packed == stock
    assert packed[0] == 400
    assert packed[1]["message"]


@pytest.mark.parametrize("name", REFUSED_BY_US)
def test_what_would_end_a_plain_server_is_refused(client: Client, name: str) -> None:
    fields, words = REFUSED_BY_US[name]
    for status, answer in both(client, fields):
        assert status == 400
        assert words in answer["message"]
        named = re.findall(r"\(field `(.*)`\)", answer["message"])
        assert set(named) <= {"items", "query, items"}  # and none of SGLang's own requests


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_sglang_makes_sense_of_is_answered(client: Client, name: str) -> None:
    (status, packed), (stock_status, stock) = both(client, ACCEPTED[name])
    assert (status, stock_status) == (200, 200)
    assert packed["usage"] == stock["usage"]
    for row, wanted in zip(packed["scores"], stock["scores"], strict=True):
        assert row == pytest.approx(wanted, rel=0, abs=1e-5)


@pytest.mark.parametrize("headers", [{}, OPT_OUT], ids=["packed", "stock"])
@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b'{"query":[1],"items":[[2]],"label_token_ids":[5]', id="cut-off"),
        pytest.param(b'{"query":"\xff","items":["a"],"label_token_ids":[5]}', id="broken-utf8"),
        pytest.param(b'{"query":"\\ud800","items":["a"],"label_token_ids":[5]}', id="surrogate"),
        pytest.param(b"[]", id="a-list"),
        pytest.param(b"null", id="null"),
        pytest.param(b"[" * 5_000, id="deeply-nested"),
        pytest.param(b'{"items":[[2]],"label_token_ids":[5],"temperature":NaN}', id="nan"),
        pytest.param(b'{"items":[[2]],"label_token_ids":[5],"temperature":1e999}', id="infinite"),
    ],
)
def test_broken_bodies_are_refused(client: Client, content: bytes, headers: dict[str, str]) -> None:
    typed = {"content-type": "application/json", **headers}
    response = client.http.post("/v1/score", content=content, headers=typed)
    assert response.status_code == 400
    assert "validation error" in response.json()["message"]


def test_a_good_request_beside_bad_ones_is_unaffected(client: Client) -> None:
    body = score_body(1, 50, [20] * 30)
    wanted = client.score(body)
    stop = Event()

    def keep_scoring() -> list[Json]:
        answers = []
        while not stop.is_set() or len(answers) < 2:
            answers.append(client.score(body))
        return answers

    with ThreadPoolExecutor() as pool:
        steady = pool.submit(keep_scoring)
        bad = [GOOD | fields for fields, _ in REFUSED_BY_US.values()] * 5
        statuses = {reply.status_code for reply in pool.map(client.post, ["/v1/score"] * 40, bad)}
        stop.set()
    assert statuses == {400}
    good = steady.result()
    assert_same_answers(good, [wanted] * len(good))
