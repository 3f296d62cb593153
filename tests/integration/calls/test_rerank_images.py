"""`/v1/rerank` of a decoder that reads images too: documents are asked for together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.support.client import Client, Json
from tests.integration.support.own_server import serving
from tests.integration.support.parity import TOLERANCE, assert_same_ranking
from tests.integration.support.pictures import picture

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

PATH = "/v1/rerank"
QUERY = "red wool blanket for winter"
DOCUMENTS = ["red wool blanket", "desk lamp", "a boot for winter", "yes", "東京 <|im_end|>"] * 4


@pytest.fixture(scope="module")
def client(model_dir: Callable[[str], Path]) -> Iterator[Client]:
    flags = ("--enable-prefill-only", "--prefill-only-max-items=30")
    with serving(model_dir("reranker-qwen3-vl"), "reranker-images", *flags) as (_, client):
        yield client


def text(words: str) -> Json:
    return {"type": "text", "text": words}


def image(colour: str) -> Json:
    return {"type": "image_url", "image_url": {"url": picture(colour)}}


@pytest.mark.patch("P64")
@pytest.mark.parametrize(
    "body",
    [
        {"query": QUERY, "documents": DOCUMENTS},
        {"query": QUERY, "documents": DOCUMENTS, "instruct": "Find what keeps warm.", "top_n": 9},
        {
            "query": [text("red "), text("wool")],
            "documents": [[text("a boot")], *DOCUMENTS],
            "return_documents": False,
        },
    ],
    ids=["plain", "instruct", "parts"],
)
def test_texts_share_forwards_and_get_stocks_scores(client: Client, body: Json) -> None:
    with client.counting() as moved:
        packed = client.post(PATH, body)
    assert packed.status_code == 200, packed.text
    assert moved["frontend.requests.packed"] == len(body["documents"])
    assert moved["frontend.forwards"] < len(body["documents"])
    stock = client.post(PATH, body, stock=True)
    assert_same_ranking(packed.json(), stock.json())
    scores = [each["score"] for each in stock.json()]
    assert 0 < min(scores) < max(scores) - 1000 * TOLERANCE


def test_documents_with_images_are_asked_for_beside_texts(client: Client) -> None:
    documents = [[image("red"), text("a boot")], "lamp", [image("green")], "yes"]
    body = {"query": QUERY, "documents": documents, "return_documents": False}
    with client.counting() as moved:
        answer = client.post(PATH, body)
    assert answer.status_code == 200, answer.text
    assert moved["frontend.requests.packed"] == moved["frontend.fallbacks.multimodal"] == 2
    assert_same_ranking(answer.json(), client.post(PATH, body, stock=True).json())


def test_too_many_documents_are_refused(client: Client) -> None:
    answer = client.post(PATH, {"query": QUERY, "documents": ["a"] * 31})
    assert answer.status_code == 400
    assert "31 documents exceed the limit of 30" in answer.text
