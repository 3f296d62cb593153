"""An encoder on the packed path: every token of a prompt sees all of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from sglang_prefill_ext.modelmaker import catalogue
from tests.integration.support.client import OPT_OUT, Client, Json, random_ids, wait_until
from tests.integration.support.own_server import Serving, serving
from tests.integration.support.parity import TOLERANCE, assert_same, assert_same_ranking, both
from tests.integration.support.processes import scheduler_pid, sent, stopped, tokens_under_way

pytestmark = pytest.mark.timeout(900)

MODEL = "bert-classifier"
QUERY = "red wool blanket for winter"
DOCUMENTS = [item.text for item in random.Random(3).sample(catalogue.items(), 20)]
IDS = [random_ids(random.Random(length), length) for length in (1, 7, 40, 200)]
FLAGS = ("--enable-prefill-only", "--sleep-on-idle", "--is-embedding", "--disable-radix-cache")
# Long enough for what is sent together to travel together, however slow the machine.
FLAGS += ("--chunked-prefill-size", "-1", "--prefill-only-gather-ms", "500")
# SGLang reserves memory for prompts that are not divided.
FLAGS += ("--mem-fraction-static", "0.3")


@pytest.fixture(scope="module")
def server(model_dir: Callable[[str], Path]) -> Iterator[Serving]:
    with serving(model_dir(MODEL), "encoder", *FLAGS) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Serving) -> Client:
    return server.client


@pytest.fixture(scope="module")
def classes(model_dir: Callable[[str], Path]) -> Callable[..., list[float]]:
    """Logits of a text or of a pair in Hugging Face."""
    directory = model_dir(MODEL)
    model: Any = AutoModelForSequenceClassification.from_pretrained(directory, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(directory)

    @torch.inference_mode()
    def logits(*texts: str) -> list[float]:
        tokens = tokenizer(*texts, return_tensors="pt", return_token_type_ids=True)
        found: list[float] = model(**tokens).logits[0].tolist()
        return found

    return logits


def test_both_paths_answered_the_known_prompts_alike(client: Client) -> None:
    assert client.scheduler()["known_answers"]["verdict"] == "same"


@pytest.mark.parametrize("given", [IDS[0], IDS[3], "a red shoe", DOCUMENTS])
def test_embeddings(client: Client, given: Any) -> None:
    answer = both(client, "/v1/embeddings", {"model": "bert", "input": given})
    assert all(len(each["embedding"]) == 3 for each in answer["data"])


@pytest.mark.parametrize("path", ["/encode", "/classify"])
@pytest.mark.parametrize("given", [{"input_ids": IDS}, {"text": DOCUMENTS}, {"text": "rain"}])
def test_native_routes(client: Client, path: str, given: Any) -> None:
    both(client, path, given)


def test_classes_are_those_of_hugging_face(
    client: Client, classes: Callable[..., list[float]]
) -> None:
    answer = client.post("/classify", {"text": DOCUMENTS}).json()
    wanted = [classes(text) for text in DOCUMENTS]
    found = [each["embedding"] for each in answer]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE)


def test_rerank(client: Client, classes: Callable[..., list[float]]) -> None:
    body = {"query": QUERY, "documents": [*DOCUMENTS, DOCUMENTS[0]]}
    answer = both(client, "/v1/rerank", body, compare=assert_same_ranking)
    wanted = {number: classes(QUERY, text)[0] for number, text in enumerate(body["documents"])}
    found = {each["index"]: each["score"] for each in answer}
    assert found == pytest.approx(wanted, abs=TOLERANCE)
    assert np.ptp(list(wanted.values())) > 1000 * TOLERANCE


def test_the_second_text_of_a_pair_has_another_type(
    client: Client, classes: Callable[..., list[float]]
) -> None:
    # Without types, the tokens of the pair would be those of this text.
    joined = f"{QUERY}<|im_end|>{DOCUMENTS[0]}"
    (pair,) = client.post("/v1/rerank", {"query": QUERY, "documents": DOCUMENTS[:1]}).json()
    alone = client.post("/classify", {"text": joined}).json()["embedding"]
    np.testing.assert_allclose(alone, classes(joined), rtol=0, atol=TOLERANCE)
    assert abs(pair["score"] - alone[0]) > 1000 * TOLERANCE


@pytest.mark.patch("P78")
def test_pairs_and_single_texts_share_a_batch_of_sglang(server: Serving, client: Client) -> None:
    pair: Json = {"query": QUERY, "documents": DOCUMENTS[:1]}
    calls = [("/v1/rerank", pair), ("/encode", {"text": DOCUMENTS[1]}), ("/v1/rerank", pair)]
    wanted = [client.post(*call, stock=True).json() for call in calls]
    with ThreadPoolExecutor(len(calls)) as pool:
        with stopped(scheduler_pid(server.server)):
            replies = [sent(client, pool, [body], path, OPT_OUT)[0] for path, body in calls]
        answers = [reply.result() for reply in replies]
    assert [answer.status_code for answer in answers] == [200] * len(calls)
    first, single, second = (answer.json() for answer in answers)
    assert_same(single["embedding"], wanted[1]["embedding"])
    for (found,), (alone,) in ((first, wanted[0]), (second, wanted[2])):
        assert_same(found["score"], alone["score"])


def test_prompts_of_many_clients_share_forwards_but_no_prefix(
    server: Serving, client: Client
) -> None:
    beginning = random_ids(random.Random(1), 100)
    prompts = [beginning + ids for ids in IDS] * 4
    wanted = client.post("/encode", {"input_ids": prompts}, stock=True).json()
    with client.counting() as moved, ThreadPoolExecutor(16) as pool:
        with stopped(scheduler_pid(server.server)):
            answers = pool.map(
                lambda ids: client.post("/encode", {"input_ids": ids}).json(), prompts
            )
            # More than any prompt has alone, so at least two wait for the same forward.
            wait_until(lambda: tokens_under_way(client) > max(map(len, prompts)))
        for found, stock in zip(answers, wanted, strict=True):
            assert_same(found["embedding"], stock["embedding"])
    assert moved["frontend.requests.packed"] == len(prompts)
    assert 1 <= moved["scheduler.forwards"] < len(prompts)


@pytest.mark.patch("P22")
def test_embeddings_in_place_of_tokens_are_refused(client: Client) -> None:
    body = {
        "input": [[5, 6, 7]],
        "model": "bert",
        "embed_override_token_id": 6,
        "embed_overrides": [[[0.5] * 128]],
    }
    with client.counting() as moved:
        packed = client.post("/v1/embeddings", body)
    stock = client.post("/v1/embeddings", body, stock=True)
    # A plain server ends with an AttributeError of its scheduler.
    assert packed.status_code == stock.status_code == 400
    assert "an encoder takes none" in packed.text
    assert "an encoder takes none" in stock.text
    assert moved["frontend.requests.packed"] == 0
    assert moved["frontend.fallbacks.embed_overrides"] == 1


def test_nothing_is_held_afterwards(client: Client) -> None:
    before = client.memory()
    both(client, "/encode", {"input_ids": IDS})
    client.assert_memory_returns_to(before)
