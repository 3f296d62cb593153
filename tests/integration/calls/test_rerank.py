"""`/v1/rerank` for both kinds of models: decoders that answer yes or no, and class heads."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from sglang_prefill_ext.local_server import LocalServer
from sglang_prefill_ext.modelmaker import catalogue
from tests.integration.support.client import Client, Json
from tests.integration.support.fuzz_bodies import RERANK
from tests.integration.support.fuzz_paths import TIMES, fuzz
from tests.integration.support.own_server import Serving, serving
from tests.integration.support.parity import TOLERANCE, assert_same_ranking, fallbacks, from_both
from tests.integration.support.processes import late_answer
from tests.integration.support.reference import Reference
from tests.integration.support.stock_metrics import growth

pytestmark = pytest.mark.timeout(900)

PATH = "/v1/rerank"
FLAGS = ("--enable-prefill-only", "--sleep-on-idle", "--enable-metrics")
QUERY = "red wool blanket for winter"
DOCUMENTS = [item.text for item in random.Random(3).sample(catalogue.items(), 40)]
OTHER_TEXT = ["ÿ ½ 東京 🙂", "a\n\nb", "{{ query }}", "<|im_end|>", "yes", " no "]
JINA = {
    "model": "reranker",
    "query": QUERY,
    "documents": DOCUMENTS,
    "top_n": 3,
    "return_documents": False,
}


@pytest.fixture(scope="module")
def reranker(model_dir: Callable[[str], Path]) -> Iterator[Serving]:
    with serving(model_dir("reranker"), "reranker", *FLAGS) as running:
        yield running


@pytest.fixture(scope="module")
def client(reranker: Serving) -> Client:
    return reranker.client


@pytest.fixture(scope="module")
def decoder(model_dir: Callable[[str], Path]) -> Reference:
    return Reference(model_dir("reranker"))


@pytest.fixture(scope="module")
def classifier(model_dir: Callable[[str], Path]) -> Iterator[Serving]:
    with serving(model_dir("classifier"), "rerank-classifier", *FLAGS) as running:
        yield running


def both(client: Client, body: Json) -> tuple[list[Json], list[Json]]:
    with client.counting() as moved:
        answers = from_both(client, PATH, body)
    assert moved["scheduler.requests.ok"] == 1
    return answers


def scores_of(answer: list[Json]) -> NDArray[np.float64]:
    """Scores in the order of the documents."""
    return np.array([each["score"] for each in sorted(answer, key=lambda each: each["index"])])


def prompts_of(decoder: Reference, body: Json) -> list[str]:
    """The prompts as Transformers renders the model's chat template."""
    given = {"instruct": body["instruct"]} if "instruct" in body else {}
    return [
        decoder.tokenizer.apply_chat_template(
            [{"role": "user", "content": text} for text in (body["query"], document)],
            tokenize=False,
            **given,
        )
        for document in body["documents"]
    ]


# A decoder that is asked for yes or no


@pytest.mark.parametrize(
    "body",
    [
        {"query": QUERY, "documents": DOCUMENTS},
        {"query": QUERY, "documents": DOCUMENTS[:1]},
        {"query": QUERY, "documents": DOCUMENTS, "instruct": "Find what keeps warm."},
        {"query": OTHER_TEXT[0], "documents": OTHER_TEXT, "instruct": ""},
        {"query": QUERY, "documents": [*DOCUMENTS[:2], *DOCUMENTS[:2]]},
        JINA,
        JINA | {"top_n": "3"},
    ],
    ids=["plain", "one", "instruct", "other-text", "repeated", "jina", "read-by-sglang"],
)
def test_answers_are_stocks(client: Client, body: Json) -> None:
    assert_same_ranking(*both(client, body))


@pytest.mark.parametrize("server", ["reranker", "classifier"])
def test_documents_are_requests_in_sglangs_metrics(
    request: pytest.FixtureRequest, server: str
) -> None:
    client = request.getfixturevalue(server).client
    grown = []
    for stock in (False, True):
        with growth(client) as more:
            answer = client.post(PATH, {"query": QUERY, "documents": DOCUMENTS[:9]}, stock=stock)
            assert answer.status_code == 200, answer.text
        # What was asked before may be cached.
        grown.append({sample: by for sample, by in more.items() if "cached" not in sample[0]})
    packed, stock_path = grown
    assert packed == stock_path
    assert 9 in packed.values()


@pytest.mark.parametrize("instruct", [{}, {"instruct": "Find what keeps warm."}])
def test_scores_are_those_of_hugging_face(
    client: Client, decoder: Reference, instruct: Json
) -> None:
    body = {"query": QUERY, "documents": DOCUMENTS, **instruct}
    labels = [decoder.tokenizer.convert_tokens_to_ids(word) for word in ("yes", "no")]
    asked = {"query": "", "items": prompts_of(decoder, body), "label_token_ids": labels}
    yes_no = np.exp(decoder.logprobs(asked, list(range(len(DOCUMENTS)))))
    wanted = yes_no[:, 0] / yes_no.sum(axis=1)
    assert np.ptp(wanted) > 1000 * TOLERANCE
    found = scores_of(client.post(PATH, body).json())
    np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE)


def test_the_best_come_first_and_top_n_cuts_the_rest(client: Client) -> None:
    body = {"query": QUERY, "documents": DOCUMENTS}
    ranked = client.post(PATH, body).json()
    scores = [each["score"] for each in ranked]
    assert scores == sorted(scores, reverse=True)
    assert [each["document"] for each in ranked] == [DOCUMENTS[each["index"]] for each in ranked]
    best = client.post(PATH, body | {"top_n": 5}).json()
    assert [each["index"] for each in best] == [each["index"] for each in ranked[:5]]
    everything = client.post(PATH, body | {"top_n": 1_000}).json()
    assert len(everything) == len(DOCUMENTS)


def test_fields_of_an_answer(client: Client) -> None:
    answer = client.post(PATH, JINA).json()
    assert len(answer) == JINA["top_n"]
    assert {frozenset(each) for each in answer} == {frozenset({"score", "index", "meta_info"})}


def test_instruction_and_query_are_computed_once(client: Client, decoder: Reference) -> None:
    body = {"query": "an unheard-of query", "documents": sorted(set(DOCUMENTS))}
    rows = [decoder.tokenizer.encode(prompt) for prompt in prompts_of(decoder, body)]
    shared = next(n for n, column in enumerate(zip(*rows, strict=False)) if len({*column}) > 1)
    asked = decoder.tokenizer.encode(prompts_of(decoder, body | {"documents": [""]})[0])
    assert shared > 0.8 * len(asked)
    with client.counting() as moved:
        assert client.post(PATH, body).status_code == 200
    computed = moved["scheduler.tokens_computed"] + moved["scheduler.tokens_cached"]
    assert computed == shared + sum(len(row) - shared for row in rows)
    assert moved["scheduler.forwards"] == moved["frontend.requests.packed"] == 1
    assert moved["frontend.items"] == len(rows)
    assert fallbacks(moved) == {}


@pytest.mark.patch("P25")
@pytest.mark.parametrize("top_n", [200, "200"], ids=["plain", "read-by-sglang"])
def test_prompts_cost_little_beside_their_scores(
    reranker: Serving, client: Client, decoder: Reference, top_n: object
) -> None:
    """If the template were compiled for every document, that would take far longer than scoring."""
    documents = [f"{n} {DOCUMENTS[n % 40]}" for n in range(200)]
    body = {"query": QUERY, "documents": documents, "top_n": top_n}
    labels = [decoder.tokenizer.convert_tokens_to_ids(word) for word in ("yes", "no")]
    score = {"query": "", "items": prompts_of(decoder, body), "label_token_ids": labels}

    def processor_s(path: str, sent: Json) -> float:
        """CPU seconds of the front end, which other load on the machine does not change."""
        front_end = psutil.Process(reranker.server.pid)
        before = front_end.cpu_times().user
        for _ in range(30):
            assert client.post(path, sent).status_code == 200
        return front_end.cpu_times().user - before

    processor_s(PATH, body)  # compiled now
    assert processor_s(PATH, body) < 10 * processor_s("/v1/score", score)


@pytest.mark.parametrize(
    "body",
    [
        {"query": QUERY, "documents": []},
        {"query": "", "documents": DOCUMENTS},
        {"query": " ", "documents": DOCUMENTS},
        {"query": QUERY, "documents": [DOCUMENTS[0], ""]},
        {"query": QUERY, "documents": [DOCUMENTS[0], "\n"]},
        {"query": QUERY},
        {"documents": DOCUMENTS},
        {"query": QUERY, "documents": DOCUMENTS[0]},
        {"query": QUERY, "documents": [{"text": DOCUMENTS[0]}]},
        {"query": QUERY, "documents": [[{"type": "text", "text": DOCUMENTS[0]}]]},
        {"query": QUERY, "documents": [5]},
        {"query": QUERY, "documents": DOCUMENTS, "top_n": 0},
        {"query": QUERY, "documents": DOCUMENTS, "instruct": 5},
    ],
    ids=str,
)
def test_bad_calls_are_answered_as_by_stock(client: Client, body: Json) -> None:
    with client.counting() as moved:
        found = client.post(PATH, body)
        wanted = client.post(PATH, body, stock=True)
    assert found.status_code == wanted.status_code == 400
    assert found.json() == wanted.json()
    assert not +moved


def test_fuzzed_calls_are_answered_as_by_stock(client: Client) -> None:
    fuzz(client, PATH, RERANK)


def test_too_many_documents_are_refused(client: Client) -> None:
    limit = client.status()["config"]["max_items"]
    with client.counting() as moved:
        refused = client.post(PATH, {"query": QUERY, "documents": ["a"] * (limit + 1)})
    assert +moved == {"frontend.requests.refused": 1}
    assert refused.status_code == refused.json()["code"] == 400
    assert f"{limit + 1} documents exceed the limit of {limit}" in refused.json()["message"]


def test_a_late_answer_is_504(client: Client, server: LocalServer) -> None:
    body = {"query": QUERY, "documents": DOCUMENTS}
    with client.counting() as moved:
        late = late_answer([server], client, PATH, body)
    assert late.status_code == late.json()["code"] == 504
    assert moved["frontend.requests.expired"] == 1


# A decoder with a head


def test_pairs_for_a_head(classifier: Serving, model_dir: Callable[[str], Path]) -> None:
    """The score is the first class of query and document, encoded as a pair."""
    body = {"query": QUERY, "documents": DOCUMENTS}
    packed, stock = both(classifier.client, body)
    np.testing.assert_allclose(scores_of(packed), scores_of(stock), rtol=0, atol=TOLERANCE)
    for one, other in zip(packed, stock, strict=True):
        assert (one["index"], one["document"]) == (other["index"], other["document"])
        assert one["meta_info"].keys() - TIMES == other["meta_info"].keys() - TIMES
        assert one["meta_info"]["prompt_tokens"] == other["meta_info"]["prompt_tokens"]
    found, wanted = scores_of(packed), first_class(model_dir("classifier"), body)
    assert np.ptp(wanted) > 1000 * TOLERANCE
    # SGLang's head has a bias, which the checkpoint lacks: it is the same for every pair.
    np.testing.assert_allclose(found - found[0], wanted - wanted[0], rtol=0, atol=2 * TOLERANCE)


def test_answer_for_a_pair(classifier: Serving) -> None:
    (answer,) = classifier.client.post(PATH, JINA | {"documents": DOCUMENTS[:1]}).json()
    assert set(answer) == {"score", "index", "meta_info"}
    assert answer["meta_info"]["prompt_tokens"] > 0


@torch.inference_mode()
def first_class(directory: Path, body: Json) -> NDArray[np.float64]:
    """The first class of each pair in Hugging Face."""
    tokenizer: Any = AutoTokenizer.from_pretrained(directory)
    head: Any = AutoModelForSequenceClassification.from_pretrained(directory, dtype=torch.float32)
    pairs = [tokenizer(body["query"], document)["input_ids"] for document in body["documents"]]
    return np.array([head(torch.tensor([pair])).logits[0, 0].item() for pair in pairs])
