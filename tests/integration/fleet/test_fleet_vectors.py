"""A router over two real engines that make vectors: embeddings and classes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_prefill_ext.client import Options, PrefillClient
from tests.integration.support.client import Client, Json, random_ids
from tests.integration.support.fleets import Routers, fleet_of, two_engines, wait_divided
from tests.integration.support.own_server import Serving
from tests.integration.support.parity import assert_same, assert_same_response

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

FLAGS = ("--enable-prefill-only", "--prefill-only-max-items=300")
RNG = random.Random(8)
TEXTS = [f"a red shoe number {number}, ½ 東京 🙂" for number in range(120)]
IDS = [random_ids(RNG, 20 + number % 30) for number in range(120)]
CALLS = {
    "embeddings": ("/v1/embeddings", {"input": TEXTS}),
    "embeddings, base64": ("/v1/embeddings", {"input": TEXTS, "encoding_format": "base64"}),
    "an embedding": ("/v1/embeddings", {"input": IDS[3], "model": "m"}),
    "classes": ("/v1/classify", {"input": TEXTS, "user": "me", "more": 1}),
    "a class": ("/v1/classify", {"input": "one"}),
    "logits": ("/classify", {"text": TEXTS}),
    "logits of ids": ("/classify", {"input_ids": IDS}),
    "logits of one": ("/classify", {"text": "one"}),
}
WRONG = [
    ("/v1/embeddings", {"input": []}),
    ("/v1/embeddings", {"input": "a", "dimensions": 2}),
    ("/v1/embeddings", {"input": ["a"] * 301}),
    ("/v1/classify", {"input": " "}),
    ("/v1/classify", {"input": [99_999_999]}),
    ("/classify", {"text": ["a"], "input_ids": [[5]]}),
    ("/classify", {"input_ids": [[5], []]}),
]


@pytest.fixture(scope="module")
def engines(model_dir: Callable[[str], Path]) -> Iterator[tuple[Serving, Serving]]:
    with two_engines(model_dir("classifier-llama"), "fleet-v", *FLAGS) as pair:
        yield pair


@pytest.fixture(scope="module")
def fleet(engines: tuple[Serving, Serving], grpc_port: int) -> Iterator[Routers]:
    urls = [each.server.base_url for each in engines]
    flags = ("--extra-work=10", f"--grpc-port={grpc_port}")
    with fleet_of(urls, "fleet-vectors", *flags) as running:
        running.wait_up(*urls)
        yield running


@pytest.mark.parametrize(("path", "body"), CALLS.values(), ids=CALLS)
def test_vectors_are_those_of_one_engine(
    fleet: Routers, one: Client, path: str, body: Json
) -> None:
    before = fleet.client.status()["counters"]["requests"].get("packed", 0)
    found, wanted = (each.post(path, body) for each in (fleet.client, one))
    assert found.status_code == wanted.status_code == 200, (found.text, wanted.text)
    if body.get("encoding_format") == "base64":
        assert found.json().keys() == wanted.json().keys()
        assert len(found.content) == len(wanted.content)
    else:
        assert_same(found.json(), wanted.json())
    assert fleet.client.status()["counters"]["requests"]["packed"] == before + 1


def test_lists_are_divided(fleet: Routers) -> None:
    prompts = [random_ids(random.Random(number), 200) for number in range(200)]

    def ask() -> None:
        assert fleet.client.post("/classify", {"input_ids": prompts}).status_code == 200

    wait_divided(fleet.client, ask)


@pytest.mark.parametrize("stock", [False, True], ids=["packed", "by an engine"])
@pytest.mark.parametrize("prompts", [TEXTS, IDS], ids=["texts", "ids"])
def test_classes_over_grpc_are_those_of_one_engine(
    fleet: Routers, grpc_port: int, one: Client, prompts: list[Any], stock: bool
) -> None:
    field = "text" if prompts is TEXTS else "input_ids"
    wanted = [each["embedding"] for each in one.post("/classify", {field: prompts}).json()]
    with PrefillClient(f"grpc://127.0.0.1:{grpc_port}") as client:
        found = client.classify(prompts, options=Options(stock=stock))
    assert_same(found.tolist(), wanted)


@pytest.mark.parametrize(("path", "body"), WRONG, ids=str)
def test_wrong_bodies_get_an_engines_own_answer(
    fleet: Routers, one: Client, path: str, body: Json
) -> None:
    found, wanted = (each.post(path, body) for each in (fleet.client, one))
    assert_same_response(found, wanted)
    assert found.status_code >= 400
