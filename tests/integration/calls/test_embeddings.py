"""Vectors of prompts on the packed path: embeddings, and logits of a classification head."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from openai import OpenAI
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

from sglang_prefill_ext.client import Options, PrefillClient
from sglang_prefill_ext.frontend.options import TIMEOUT_HEADER
from sglang_prefill_ext.grpc_frontend import prefill_pb2 as pb
from tests.integration.support.adapters import Adapter, make_adapter, unload, wait_until_unlisted
from tests.integration.support.client import OPT_OUT, Client, Json, random_ids
from tests.integration.support.fuzz_bodies import CLASSES, EMBEDDINGS
from tests.integration.support.fuzz_paths import fuzz
from tests.integration.support.grpc_frontends import connected, front_ends, int32_rows
from tests.integration.support.override_bodies import PLACEHOLDER, body_with, embeds
from tests.integration.support.own_server import Serving, serving
from tests.integration.support.parity import TOLERANCE
from tests.integration.support.processes import scheduler_pid, sent, stopped
from tests.integration.support.reference import Reference

pytestmark = pytest.mark.timeout(900)

RNG = random.Random(5)
PROMPTS = [random_ids(RNG, length) for length in (1, 7, 40, 300)]
INSTRUCTED = [random_ids(random.Random(1), 50) + prompt for prompt in PROMPTS]
CLASSIFIER_HIDDEN = 128
TEXTS = ["a red shoe", "A red shoe.", "rain in spring", "ÿ ½ 東京 🙂"]
FLAGS = ("--enable-prefill-only", "--sleep-on-idle")
ADAPTER = "an-adapter"
ONE = {"max_new_tokens": 1}


@pytest.fixture(scope="module")
def attach(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the servers' sockets for gRPC front ends."""
    return tmp_path_factory.mktemp("attach")


@pytest.fixture(scope="module")
def adapters(
    model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Adapter]:
    """One adapter for each model; all have the name `ADAPTER`."""
    return {
        model: make_adapter(ADAPTER, model_dir(model), tmp_path_factory.mktemp(model), rank=4)
        for model in ("micro", "classifier")
    }


@pytest.fixture(scope="module")
def embedder(
    model_dir: Callable[[str], Path], attach: Path, adapters: dict[str, Adapter]
) -> Iterator[Serving]:
    # Long enough for what is sent together to travel together, however slow the machine.
    flags = ("--is-embedding", *FLAGS, "--prefill-only-gather-ms", "500")
    flags += (f"--prefill-only-attach={attach / 'embedder'}", *adapters["micro"].flags)
    with serving(model_dir("micro"), "embeddings", *flags) as running:
        yield running


@pytest.fixture(scope="module")
def classifier(
    model_dir: Callable[[str], Path], attach: Path, adapters: dict[str, Adapter]
) -> Iterator[Serving]:
    flags = (*FLAGS, f"--prefill-only-attach={attach / 'classifier'}")
    # SGLang needs these for setwise calls, but reserves too much memory for the second.
    flags += ("--disable-radix-cache", "--chunked-prefill-size", "-1")
    flags += ("--mem-fraction-static", "0.3", *adapters["classifier"].flags)
    with serving(model_dir("classifier"), "classifier", *flags) as running:
        yield running


@pytest.fixture(scope="module")
def oracle(model_dir: Callable[[str], Path]) -> Callable[..., NDArray[np.float64]]:
    """The embedding in Hugging Face: the last token's final state, at unit length.

    `own` embeddings replace those of the placeholders.
    """
    model: Any = AutoModel.from_pretrained(model_dir("micro"), dtype=torch.float32)

    @torch.inference_mode()
    def embed(prompt: list[int], own: Any = ()) -> NDArray[np.float64]:
        inputs = model.embed_tokens(torch.tensor([prompt]))
        if len(own):
            inputs[0, torch.tensor(prompt) == PLACEHOLDER] = torch.tensor(own)
        state = model(inputs_embeds=inputs).last_hidden_state[0, -1].double()
        unit: NDArray[np.float64] = (state / state.norm()).numpy()
        return unit

    return embed


def vectors(response: Any) -> NDArray[np.float64]:
    assert response.status_code == 200, response.text
    return np.array([each["embedding"] for each in response.json()["data"]])


def test_a_short_prompt_that_comes_again_is_kept(embedder: Serving) -> None:
    client, prompt = embedder.client, random_ids(random.Random(9), 100)
    body = {"model": "m", "input": prompt}
    with client.counting() as moved:
        found = [vectors(client.post("/v1/embeddings", body)) for _ in range(3)]
    assert moved["scheduler.tokens_cached"] == len(prompt) - 1
    for each in (*found, vectors(client.post("/v1/embeddings", body, stock=True))):
        np.testing.assert_allclose(each, found[0], atol=TOLERANCE)


def both(client: Client, path: str, body: Json) -> tuple[Any, Any]:
    """The answers of the packed and of the stock path, which must have been taken."""
    with client.counting() as moved:
        packed = client.post(path, body)
        stock = client.post(path, body, stock=True)
    assert (packed.status_code, stock.status_code) == (200, 200), (packed.text, stock.text)
    assert moved["frontend.requests.packed"] == 1
    assert moved["scheduler.requests.ok"] >= 1
    assert moved["frontend.fallbacks.opted_out"] == 1
    return packed.json(), stock.json()


@pytest.mark.patch("P24")
@pytest.mark.parametrize(
    "prompts",
    [PROMPTS[2], PROMPTS, INSTRUCTED, TEXTS[0], TEXTS],
    ids=["ids", "list", "instructed", "text", "texts"],
)
def test_embeddings_are_stocks(embedder: Serving, prompts: Any) -> None:
    packed, stock = both(embedder.client, "/v1/embeddings", {"model": "m", "input": prompts})
    found, wanted = (
        [each.pop("embedding") for each in answer["data"]] for answer in (packed, stock)
    )
    np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE)
    assert packed == stock


@pytest.mark.parametrize("path", EMBEDDINGS)
def test_fuzzed_bodies_are_answered_as_by_stock(embedder: Serving, path: str) -> None:
    fuzz(embedder.client, path, EMBEDDINGS[path])


@pytest.mark.parametrize("path", CLASSES)
def test_fuzzed_bodies_for_a_head_are_answered_as_by_stock(classifier: Serving, path: str) -> None:
    fuzz(classifier.client, path, CLASSES[path])


def test_embeddings_are_those_of_hugging_face(
    embedder: Serving, oracle: Callable[[list[int]], NDArray[np.float64]]
) -> None:
    for prompts in (PROMPTS, INSTRUCTED):
        answer = embedder.client.post("/v1/embeddings", {"model": "m", "input": prompts})
        wanted = [oracle(prompt) for prompt in prompts]
        np.testing.assert_allclose(vectors(answer), wanted, rtol=0, atol=TOLERANCE)


def overridden(prompts: list[list[int]], seed: int) -> tuple[list[list[int]], list[Any]]:
    """Prompts with a placeholder at both ends, and the embeddings for these."""
    marked = [[PLACEHOLDER, *prompt, PLACEHOLDER] for prompt in prompts]
    counts = [prompt.count(PLACEHOLDER) for prompt in marked]
    return marked, [embeds(seed + n, count).tolist() for n, count in enumerate(counts)]


def test_embeddings_in_place_of_tokens_make_stocks_vectors(
    embedder: Serving, oracle: Callable[..., NDArray[np.float64]]
) -> None:
    prompts, own = overridden(PROMPTS, 1)
    body = {"model": "m", "input": prompts, "embed_override_token_id": PLACEHOLDER}
    found, stock = both(embedder.client, "/v1/embeddings", body | {"embed_overrides": own})
    packed = [each["embedding"] for each in found["data"]]
    for number, each in enumerate(stock["data"]):
        np.testing.assert_allclose(packed[number], each["embedding"], rtol=0, atol=TOLERANCE)
    wanted = [oracle(prompt, given) for prompt, given in zip(prompts, own, strict=True)]
    np.testing.assert_allclose(packed, wanted, rtol=0, atol=TOLERANCE)
    own[1] = None
    both(embedder.client, "/v1/embeddings", body | {"embed_overrides": own})


def test_texts_have_placeholders_too(embedder: Serving, reference: Reference) -> None:
    text = reference.tokenizer.eos_token
    body = {
        "model": "m",
        "input": [f"a {text} shoe {text}", "a shoe"],
        "embed_override_token_id": reference.tokenizer.eos_token_id,
        "embed_overrides": [embeds(5, 2).tolist(), None],
    }
    packed, stock = both(embedder.client, "/v1/embeddings", body)
    found, wanted = ([each["embedding"] for each in answer["data"]] for answer in (packed, stock))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    "fields",
    [
        {"embed_overrides": [embeds(1, 1).tolist()]},
        {"embed_override_token_id": None},
        {"embed_overrides": None},
    ],
    ids=["count", "no-token", "no-embeddings"],
)
def test_embeddings_that_stock_refuses_are_refused_in_its_words(
    embedder: Serving, fields: Json
) -> None:
    prompts, own = overridden(PROMPTS[1:2], 1)
    body = {"model": "m", "input": prompts, "embed_override_token_id": PLACEHOLDER}
    body |= {"embed_overrides": own} | fields
    packed, stock = (
        embedder.client.post("/v1/embeddings", body, stock=stock) for stock in (False, True)
    )
    assert packed.status_code == stock.status_code == 400
    assert packed.json() == stock.json()


def test_a_prefix_in_common_is_computed_once(embedder: Serving) -> None:
    prefix = random_ids(random.Random(2), 50)
    body = {"model": "m", "input": [prefix + prompt for prompt in PROMPTS]}
    with embedder.client.counting() as moved:
        embedder.client.post("/v1/embeddings", body)
    own = sum(map(len, PROMPTS))
    assert moved["scheduler.tokens_computed"] == 50 + own
    assert moved["frontend.tokens_saved"] == 3 * 50
    assert moved["frontend.items"] == len(INSTRUCTED)


def test_the_native_route_answers_as_stock_does(embedder: Serving) -> None:
    for body in ({"input_ids": PROMPTS[1]}, {"input_ids": PROMPTS}, {"text": TEXTS}):
        found, wanted = both(embedder.client, "/encode", body)
        assert isinstance(found, list) is isinstance(wanted, list)
        listed = [answer if isinstance(answer, list) else [answer] for answer in (found, wanted)]
        for one, other in zip(*listed, strict=True):
            np.testing.assert_allclose(one["embedding"], other["embedding"], atol=TOLERANCE)
            assert one.keys() == other.keys()
            assert one["meta_info"].keys() == other["meta_info"].keys()
            for name in ("finish_reason", "prompt_tokens", "weight_version", "num_retractions"):
                assert one["meta_info"][name] == other["meta_info"][name]


def test_an_adapter_makes_stocks_vectors_and_those_of_the_merged_model(
    embedder: Serving, model_dir: Callable[[str], Path], adapters: dict[str, Adapter]
) -> None:
    merged: Any = AutoModelForCausalLM.from_pretrained(model_dir("micro"), dtype=torch.float32)
    adapters["micro"].merge_into(merged)
    body = {"model": f"m:{ADAPTER}", "input": PROMPTS}
    found, stock = both(embedder.client, "/v1/embeddings", body)
    packed, wanted = ([each["embedding"] for each in data["data"]] for data in (found, stock))
    np.testing.assert_allclose(packed, wanted, rtol=0, atol=TOLERANCE)
    for prompt, vector in zip(PROMPTS, packed, strict=True):
        with torch.inference_mode():
            state = merged.model(torch.tensor([prompt])).last_hidden_state[0, -1].double()
        np.testing.assert_allclose(vector, state / state.norm(), rtol=0, atol=TOLERANCE)
    one, other = both(embedder.client, "/encode", {"input_ids": PROMPTS[1], "lora_path": ADAPTER})
    np.testing.assert_allclose(one["embedding"], other["embedding"], rtol=0, atol=TOLERANCE)


def test_every_end_lets_go_of_the_adapter(embedder: Serving) -> None:
    client, body = embedder.client, {"input_ids": PROMPTS[1], "lora_path": ADAPTER}
    late = {TIMEOUT_HEADER: "1"}
    wrong = body | {"lora_path": "x"}
    unknown = [client.post("/encode", wrong, stock=stock) for stock in (False, True)]
    assert [each.status_code for each in unknown] == [400, 400]
    assert unknown[0].json() == unknown[1].json()
    with ThreadPoolExecutor(3) as pool:
        with stopped(scheduler_pid(embedder.server)):
            staying = pool.submit(client.post, "/encode", body)
            expiring = pool.submit(client.http.post, "/encode", json=body, headers=late)
            with pytest.raises(httpx.ReadTimeout):
                client.http.post("/encode", json=body, timeout=0.3)
            unloading = pool.submit(unload, client, ADAPTER)
            wait_until_unlisted(client, ADAPTER)
        assert staying.result().status_code == 200
        assert expiring.result().status_code == 504
        assert unloading.result().json()["success"]
    both(client, "/encode", body)


def test_an_adapter_is_unloaded_in_a_pause_whatever_waits(embedder: Serving) -> None:
    client, body = embedder.client, {"input_ids": PROMPTS[1], "lora_path": ADAPTER}
    wanted = client.post("/encode", body, stock=True).json()
    with ThreadPoolExecutor(2) as pool:
        assert client.post("/pause_generation", {"mode": "in_place"}).status_code == 200
        try:
            (expiring,) = sent(client, pool, [body], "/encode", {TIMEOUT_HEADER: "1"})
            (waiting,) = sent(client, pool, [body], "/encode")
            assert expiring.result().status_code == 504
            assert unload(client, ADAPTER).json()["success"]
        finally:
            client.post("/continue_generation", {})
    found = waiting.result().json()
    np.testing.assert_allclose(found["embedding"], wanted["embedding"], atol=TOLERANCE)


def test_base64_holds_the_same_numbers(embedder: Serving) -> None:
    body = {"model": "m", "input": PROMPTS[1]}
    plain = vectors(embedder.client.post("/v1/embeddings", body))
    packed = embedder.client.post("/v1/embeddings", body | {"encoding_format": "base64"}).json()
    decoded = np.frombuffer(base64.b64decode(packed["data"][0]["embedding"]), dtype="<f4")
    np.testing.assert_allclose(decoded, plain[0], rtol=0, atol=TOLERANCE)


def test_the_openai_client_embeds_as_before(embedder: Serving) -> None:
    openai = OpenAI(base_url=f"{embedder.server.base_url}/v1", api_key="none", max_retries=0)
    with embedder.client.counting() as moved:
        packed = openai.embeddings.create(model="m", input=TEXTS)
    assert moved["frontend.requests.packed"] == 1
    stock = openai.embeddings.create(model="m", input=TEXTS, extra_headers=OPT_OUT)
    found, wanted = ([each.embedding for each in answer.data] for answer in (packed, stock))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE)
    assert packed.usage == stock.usage


@pytest.mark.parametrize("prompts", [PROMPTS, TEXTS], ids=["ids", "texts"])
def test_the_python_client_embeds(embedder: Serving, prompts: Any) -> None:
    raw = vectors(embedder.client.post("/v1/embeddings", {"model": "m", "input": prompts}))
    with PrefillClient(embedder.server.base_url, max_items_per_request=3) as client:
        found = client.embed(prompts)
    np.testing.assert_allclose(found, raw, rtol=0, atol=TOLERANCE)


def embedded_together(embedder: Serving, prompts: list[list[int]]) -> list[NDArray[np.float64]]:
    """The vectors of prompts that as many clients send before any is answered."""
    bodies: list[Json] = [{"model": "m", "input": prompt} for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        with stopped(scheduler_pid(embedder.server)):
            replies = sent(embedder.client, pool, bodies, "/v1/embeddings")
        return [vectors(reply.result())[0] for reply in replies]


def test_single_prompts_of_many_clients_travel_and_are_computed_together(
    embedder: Serving, oracle: Callable[[list[int]], NDArray[np.float64]]
) -> None:
    rng = random.Random(8)
    prompts = [random_ids(rng, rng.randint(3, 60)) for _ in range(64)]
    with embedder.client.counting() as moved:
        found = embedded_together(embedder, prompts)
    np.testing.assert_allclose(found, [oracle(p) for p in prompts], rtol=0, atol=TOLERANCE)
    assert moved["scheduler.forwards"] <= moved["scheduler.requests.ok"] < len(prompts) / 2
    assert moved["frontend.requests.packed"] == moved["frontend.items"] == len(prompts)


def test_an_instruction_that_clients_have_in_common_is_computed_once_a_batch(
    embedder: Serving, oracle: Callable[[list[int]], NDArray[np.float64]]
) -> None:
    rng = random.Random(9)
    instruction = random_ids(rng, 200)
    prompts = [instruction + random_ids(rng, 5) for _ in range(32)]
    with embedder.client.counting() as moved:
        found = embedded_together(embedder, prompts)
    np.testing.assert_allclose(found, [oracle(p) for p in prompts], rtol=0, atol=TOLERANCE)
    assert moved["scheduler.tokens_computed"] < sum(map(len, prompts)) / 2


def test_a_client_that_leaves_takes_nobody_along(embedder: Serving) -> None:
    client, rng = embedder.client, random.Random(10)
    bodies = [{"model": "m", "input": random_ids(rng, 10)} for _ in range(16)]
    with ThreadPoolExecutor(16) as pool:
        with stopped(scheduler_pid(embedder.server)):  # so that nothing is answered too early
            staying = [pool.submit(client.post, "/v1/embeddings", body) for body in bodies[:8]]
            for body in bodies[8:]:
                with pytest.raises(httpx.ReadTimeout):
                    client.http.post("/v1/embeddings", json=body, timeout=0.2)
        assert [vectors(each.result()).shape for each in staying] == [(1, 64)] * 8
    client.wait_idle()
    assert client.status()["frontend"]["in_flight"] == 0


def test_a_call_is_aborted_by_the_name_of_its_prompt(embedder: Serving) -> None:
    client, body = embedder.client, {"input_ids": PROMPTS[1]}
    with ThreadPoolExecutor() as pool, client.counting() as moved:
        with stopped(scheduler_pid(embedder.server)):
            mine, other = sent(client, pool, [body | {"rid": "mine"}, body], "/encode")
            assert client.post("/abort_request", {"rid": "mine"}).status_code == 200
            assert mine.result().status_code == 503
        assert other.result().status_code == 200
    assert moved["frontend.requests.aborted"] == moved["frontend.requests.packed"] == 1


def test_a_name_in_use_is_refused_as_by_stock(embedder: Serving) -> None:
    client, body = embedder.client, {"input_ids": PROMPTS[1], "rid": "mine"}
    for header in ({}, OPT_OUT):
        with ThreadPoolExecutor() as pool:
            with stopped(scheduler_pid(embedder.server)):
                (first,) = sent(client, pool, [body], "/encode")
                second = client.http.post("/encode", json=body, headers=header)
            assert second.status_code == 400
            assert second.json()["error"]["message"] == "Duplicate request ID detected: mine"
            assert first.result().status_code == 200


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"input_ids": PROMPTS[1], "return_prompt_token_ids": True}, "unusual_input"),
        ({"text": "x", "lora_path": None, "token_indices_to_pool": [0]}, "token_positions"),
        ({"input_ids": [7] * 16_385}, "row_over_budget"),
        ({"text": ["x", "y"], "lora_path": [ADAPTER, None]}, "several_adapters"),
    ],
)
def test_what_is_not_packed_takes_the_stock_path(
    embedder: Serving, body: Json, reason: str
) -> None:
    with embedder.client.counting() as moved:
        embedder.client.post("/encode", body)
    assert moved[f"frontend.fallbacks.{reason}"] == 1
    assert moved["frontend.requests.packed"] == 0


@pytest.mark.parametrize(
    "body",
    [
        {"input": []},
        {"input": ""},
        {"input": [" "]},
        {"input": [[5], []]},
        {"input": [-1]},
        {"input": [8_000]},
        {"input": [[5], [8_000]]},
        {"input": "x", "dimensions": 8},
        {"input": [5] * 40_000},
        {"input": "x", "encoding_format": "int8"},
        {"input": "x", "model": 5},
        {},
    ],
    ids=lambda body: str(body)[:40],
)
def test_bad_input_is_refused_and_nothing_else_is_lost(embedder: Serving, body: Json) -> None:
    client = embedder.client
    refused = client.post("/v1/embeddings", {"model": "m"} | body)
    assert refused.status_code == 400, refused.text
    assert refused.json()["message"]
    good = client.post("/v1/embeddings", {"model": "m", "input": PROMPTS[1]})
    assert vectors(good).shape == (1, 64)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"input_ids": [5, 6]}),
        ("/generate", {"input_ids": [[5, 6], [7]], "sampling_params": {"max_new_tokens": 2}}),
        ("/generate", {"text": "a", "stream": True}),
        ("/generate", {"text": "a", "sampling_params": ONE, "return_logprob": True}),
        ("/generate", {"text": "a", "sampling_params": ONE | {"beam_width": 2}}),
        ("/v1/completions", {"model": "m", "prompt": "a", "max_tokens": 1, "logprobs": 1}),
        ("/v1/completions", {"model": "m", "prompt": "a"}),
        ("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "a"}]}),
    ],
)
@pytest.mark.parametrize("stock", [False, True])
def test_a_model_that_makes_vectors_generates_nothing(
    embedder: Serving, path: str, body: Json, stock: bool
) -> None:
    client = embedder.client
    answer = client.post(path, body, stock=stock)
    assert "this model makes vectors" in answer.text
    assert answer.status_code == (200 if body.get("stream") else 400)
    assert client.post("/encode", {"text": "a"}).status_code == 200


@pytest.mark.parametrize("single", [True, False])
def test_a_text_too_long_for_the_context_is_refused_as_by_stock_and_encoded_once(
    embedder: Serving, single: bool
) -> None:
    client, text = embedder.client, "the word " * 20_000
    body = {"model": "m", "input": text if single else ["a", text]}
    with client.counting() as moved:
        found = client.post("/v1/embeddings", body)
    assert moved["frontend.fallbacks.prompt_too_long"] == 1
    assert moved["frontend.text_batches"] == 1, "texts were encoded again"
    stock = client.post("/v1/embeddings", body, stock=True)
    assert "is longer than the model's context length" in stock.text
    assert (found.status_code, found.json()) == (stock.status_code, stock.json())


def test_a_timeout_that_cannot_be_met_is_an_error(embedder: Serving) -> None:
    headers = {"x-prefill-only-timeout-ms": "never"}
    body = {"model": "m", "input": PROMPTS[1]}
    refused = embedder.client.http.post("/v1/embeddings", json=body, headers=headers)
    assert refused.status_code == 400
    assert "x-prefill-only-timeout-ms" in refused.text


def test_nothing_is_left_behind(embedder: Serving) -> None:
    client = embedder.client
    before = client.memory()
    for _ in range(3):
        client.post("/v1/embeddings", {"model": "m", "input": INSTRUCTED})
    with client.counting() as moved:
        assert client.http.get("/health_generate").status_code == 200
    assert moved["frontend.fallbacks.health_check"] == 1
    client.assert_memory_returns_to(before)


def test_scores_that_sglang_makes_of_classes_are_packed_underneath(classifier: Serving) -> None:
    body = {"query": PROMPTS[1], "items": PROMPTS, "apply_softmax": True}
    packed, stock = both(classifier.client, "/v1/score", body)
    assert np.shape(packed["scores"]) == (len(PROMPTS), 3)
    np.testing.assert_allclose(packed["scores"], stock["scores"], rtol=0, atol=TOLERANCE)


def test_scores_of_classes_are_explained(classifier: Serving) -> None:
    body = {"query": PROMPTS[1], "items": PROMPTS}
    answers = [
        classifier.client.post("/prefill_only/explain", body, stock=stock).json()
        for stock in (False, True)
    ]
    usage = classifier.client.post("/v1/score", body).json()["usage"]
    assert {name: value for name, value in answers[0].items() if not name.endswith("_ms")} == {
        "path": "packed",
        "reason": None,
        "execution_class": "one_shot",
        "rows": len(PROMPTS),
        "prompt_tokens": usage["prompt_tokens"],
        "experts_recently": None,
    }
    assert answers[0]["compute_ms"] > 0
    assert answers[1] == {"path": "stock", "reason": "opted_out"}


def test_states_before_the_head_are_stocks(classifier: Serving) -> None:
    body = {"query": PROMPTS[1], "items": PROMPTS, "return_pooled_hidden_states": True}
    packed, stock = both(classifier.client, "/v1/score", body)
    assert np.shape(packed["pooled_hidden_states"]) == (len(PROMPTS), CLASSIFIER_HIDDEN)
    for name in ("scores", "pooled_hidden_states"):
        np.testing.assert_allclose(packed[name], stock[name], rtol=0, atol=TOLERANCE)


def test_embeddings_take_the_places_of_tokens(classifier: Serving) -> None:
    body = body_with(3, 20, [1, 4, 9], in_query=2, in_item=1, hidden=CLASSIFIER_HIDDEN)
    del body["return_token_logprobs"]
    body["item_embed_overrides"][1] = None
    for fields in ({}, {"query_embed_overrides": None}):
        packed, stock = both(classifier.client, "/v1/score", body | fields)
        np.testing.assert_allclose(packed["scores"], stock["scores"], rtol=0, atol=TOLERANCE)
        assert packed.keys() == stock.keys()


def setwise_body(tokenizer: Any, items: list[list[int]]) -> Json:
    """A setwise request; items have candidates of these lengths, each followed by an anchor."""
    rng = random.Random(8)

    def drawn(length: int) -> list[int]:
        return [token + (token == PLACEHOLDER) for token in random_ids(rng, length)]

    return {
        "query": drawn(30),
        "items": [[t for n in item for t in [*drawn(n), PLACEHOLDER]] + drawn(2) for item in items],
        "score_extraction_token": tokenizer.convert_ids_to_tokens(PLACEHOLDER),
    }


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"apply_softmax": True},
        {"return_pooled_hidden_states": True},
        {"embed_override_token_id": PLACEHOLDER},
    ],
    ids=["logits", "softmax", "states", "embeddings"],
)
def test_setwise_scores_of_classes_are_stocks(
    classifier: Serving, reference: Reference, fields: Json
) -> None:
    items = [[5, 0, 9], [3], [40, 1]]
    body = setwise_body(reference.tokenizer, items) | fields
    if "embed_override_token_id" in fields:  # in the places where classes are read
        own = [embeds(n, len(item), hidden=CLASSIFIER_HIDDEN) for n, item in enumerate(items)]
        body["item_embed_overrides"] = [own[0].tolist(), None, own[2].tolist()]
    packed, stock = both(classifier.client, "/v1/score", body)
    assert packed.keys() == stock.keys()
    assert packed["usage"] == stock["usage"]
    assert [np.shape(each) for each in packed["scores"]] == [(len(item), 3) for item in items]
    for name in ("scores", "pooled_hidden_states"):
        for one, other in zip(packed[name] or [], stock[name] or [], strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE)
    if "return_pooled_hidden_states" in fields:
        assert np.shape(packed["pooled_hidden_states"][0]) == (3, CLASSIFIER_HIDDEN)


def test_setwise_texts_and_refusals_of_classes_are_stocks(
    classifier: Serving, reference: Reference
) -> None:
    text = reference.tokenizer.eos_token
    body: Json = {"query": "Which? ", "score_extraction_token": text}
    items = [f"one {text} two {text}", f"{text} three"]
    packed, stock = both(classifier.client, "/v1/score", body | {"items": items})
    for one, other in zip(packed["scores"], stock["scores"], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE)
    for fields in ({"items": ["none"]}, {"items": items, "query": f"{text} before"}):
        answers = [
            classifier.client.post("/v1/score", body | fields, stock=stock)
            for stock in (False, True)
        ]
        assert [answer.status_code for answer in answers] == [400, 400]
        assert answers[0].json() == answers[1].json()


def test_classes_at_a_token_are_those_of_the_prompt_up_to_it(
    classifier: Serving, model_dir: Callable[[str], Path], reference: Reference
) -> None:
    body = setwise_body(reference.tokenizer, [[5, 0, 9], [40, 1]])
    path = model_dir("classifier")
    model: Any = AutoModelForSequenceClassification.from_pretrained(path, dtype=torch.float32)
    found = classifier.client.post("/v1/score", body).json()["scores"]
    exact = []
    for item in body["items"]:
        prompt = body["query"] + item
        ends = [place + 1 for place, token in enumerate(prompt) if token == PLACEHOLDER]
        with torch.inference_mode():
            exact += [model(torch.tensor([prompt[:end]])).logits[0].tolist() for end in ends]
    packed = np.concatenate(found)
    # SGLang's head has a bias, see below.
    np.testing.assert_allclose(
        packed - packed[0], np.array(exact) - exact[0], rtol=0, atol=2 * TOLERANCE
    )


@pytest.mark.patch("P22")
@pytest.mark.parametrize("positions", [[3], [-1], [], [2**63], [[0], [1, 2]]], ids=str)
@pytest.mark.parametrize("stock", [False, True])
def test_positions_that_end_a_plain_server_are_refused(
    classifier: Serving, positions: list[Any], stock: bool
) -> None:
    assert refusal_of(classifier, positions, stock=stock) == 400


@pytest.mark.patch("P22")
@pytest.mark.parametrize("positions", [[2**63], [[0], [1, 2]]], ids=str)
def test_so_are_those_that_a_model_does_not_read(embedder: Serving, positions: list[Any]) -> None:
    assert refusal_of(embedder, positions) == 400
    ignored = {"input_ids": [5, 6, 7], "token_indices_to_pool": [9]}
    assert embedder.client.post("/encode", ignored).status_code == 200


def refusal_of(serving: Serving, positions: list[Any], *, stock: bool = False) -> int:
    """The status of an answer that names the positions."""
    body = {"input_ids": [5, 6, 7], "token_indices_to_pool": positions}
    response = serving.client.post("/classify", body, stock=stock)
    assert "token_indices_to_pool" in response.json()["error"]["message"]
    return response.status_code


def test_classes_are_stocks_and_those_of_hugging_face(
    classifier: Serving, model_dir: Callable[[str], Path]
) -> None:
    body = {"input_ids": INSTRUCTED}
    found, wanted = both(classifier.client, "/classify", body)
    path = model_dir("classifier")
    model: Any = AutoModelForSequenceClassification.from_pretrained(path, dtype=torch.float32)
    with torch.inference_mode():
        exact = [model(torch.tensor([prompt])).logits[0].tolist() for prompt in INSTRUCTED]
    packed, stock = (np.array([each["embedding"] for each in answer]) for answer in (found, wanted))
    assert packed.shape == (len(INSTRUCTED), 3)
    np.testing.assert_allclose(packed, stock, rtol=0, atol=TOLERANCE)
    # SGLang's head has a bias, which checkpoints of this architecture lack: whatever it is, it is
    # the same for every prompt.
    np.testing.assert_allclose(
        packed - packed[0], np.array(exact) - exact[0], rtol=0, atol=2 * TOLERANCE
    )


def test_an_adapter_makes_stocks_classes(classifier: Serving) -> None:
    body = {"input_ids": PROMPTS, "lora_path": ADAPTER}
    found, stock = both(classifier.client, "/classify", body)
    plain, _ = both(classifier.client, "/classify", {"input_ids": PROMPTS})
    logits = [[each["embedding"] for each in answer] for answer in (found, stock, plain)]
    np.testing.assert_allclose(logits[0], logits[1], rtol=0, atol=TOLERANCE)
    assert np.abs(np.subtract(logits[0], logits[2])).max() > 100 * TOLERANCE


def test_class_probabilities_are_stocks(classifier: Serving) -> None:
    packed, stock = both(classifier.client, "/v1/classify", {"model": "m", "input": TEXTS})
    for one, other in zip(packed["data"], stock["data"], strict=True):
        assert one["label"] == other["label"]
        np.testing.assert_allclose(one["probs"], other["probs"], rtol=0, atol=TOLERANCE)


def test_the_python_client_classifies(classifier: Serving) -> None:
    raw = classifier.client.post("/classify", {"input_ids": INSTRUCTED}).json()
    with PrefillClient(classifier.server.base_url, max_items_per_request=3) as client:
        found = client.classify(INSTRUCTED)
    wanted = [each["embedding"] for each in raw]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE)


def test_embeddings_over_grpc_are_those_of_http(embedder: Serving, attach: Path) -> None:
    prompts = {
        "texts": (TEXTS, pb.Prompts(texts=pb.Texts(texts=TEXTS))),
        "ids": (PROMPTS, pb.Prompts(ids=int32_rows(PROMPTS))),
    }
    with (
        front_ends(attach / "embedder", "grpc-embedder", "--processes=1") as running,
        connected(running.address) as stub,
    ):
        for plain, asked in prompts.values():
            wanted = vectors(embedder.client.post("/v1/embeddings", {"model": "m", "input": plain}))
            found = stub.Embed(pb.EmbedRequest(prompts=asked))
            assert found.usage.path == pb.PATH_PACKED
            table = np.frombuffer(found.vectors, "<f4").reshape(-1, found.width)
            np.testing.assert_allclose(table, wanted, rtol=0, atol=TOLERANCE)
        whole = stub.Embed(pb.EmbedRequest(prompts=asked, options=pb.Options(stock=True)))
        assert (whole.usage.path, whole.usage.reason) == (pb.PATH_ENGINE, "opted_out")
        own = np.frombuffer(whole.vectors, "<f4").reshape(-1, whole.width)
        np.testing.assert_allclose(table, own, rtol=0, atol=TOLERANCE)
        with pytest.raises(grpc.RpcError, match="matryoshka") as caught:
            stub.Embed(pb.EmbedRequest(prompts=asked, dimensions=8))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        empty = pb.Prompts(texts=pb.Texts(texts=[""]))
        for stock in (False, True):
            with pytest.raises(grpc.RpcError, match=r"no tokens \(field `prompts`\)"):
                stub.Embed(pb.EmbedRequest(prompts=empty, options=pb.Options(stock=stock)))
        embed_with_an_adapter(embedder, running.address, stub)


def embed_with_an_adapter(embedder: Serving, address: str, stub: Any) -> None:
    """The typed client gets stock's vectors on both wires, and the adapter can be unloaded."""
    body = {"model": f"m:{ADAPTER}", "input": PROMPTS}
    wanted = vectors(embedder.client.post("/v1/embeddings", body, stock=True))
    prompts = pb.Prompts(ids=int32_rows(PROMPTS))
    for stock, path in ((False, pb.PATH_PACKED), (True, pb.PATH_ENGINE)):
        options = pb.Options(stock=stock)
        found = stub.Embed(pb.EmbedRequest(prompts=prompts, adapter=ADAPTER, options=options))
        assert found.usage.path == path
        table = np.frombuffer(found.vectors, "<f4").reshape(-1, found.width)
        np.testing.assert_allclose(table, wanted, rtol=0, atol=TOLERANCE)
        with pytest.raises(grpc.RpcError, match=r"adapter: .*never been loaded") as caught:
            stub.Embed(pb.EmbedRequest(prompts=prompts, adapter="x", options=options))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    for url in (f"grpc://{address}", embedder.server.base_url):
        with PrefillClient(url) as client, embedder.client.counting() as moved:
            found = client.embed(PROMPTS, adapter=ADAPTER)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE)
        assert moved["scheduler.requests.ok"] >= 1
        assert not any(count for name, count in moved.items() if "fallbacks" in name)
    asked = pb.EmbedRequest(prompts=prompts, adapter=ADAPTER)
    with ThreadPoolExecutor(1) as pool:
        with stopped(scheduler_pid(embedder.server)):
            leaving, staying = stub.Embed.future(asked), stub.Embed.future(asked)
            with pytest.raises(grpc.RpcError) as caught:
                stub.Embed(asked, timeout=1)
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            leaving.cancel()
            unloading = pool.submit(unload, embedder.client, ADAPTER)
            wait_until_unlisted(embedder.client, ADAPTER)
            assert not unloading.done()
        assert staying.result().usage.path == pb.PATH_PACKED
        assert unloading.result().json()["success"]
    # SGLang loads the adapter again when a request names it.
    found = stub.Embed(asked)
    table = np.frombuffer(found.vectors, "<f4").reshape(-1, found.width)
    np.testing.assert_allclose(table, wanted, rtol=0, atol=TOLERANCE)


def test_classes_over_grpc_are_those_of_http(classifier: Serving, attach: Path) -> None:
    with (
        front_ends(attach / "classifier", "grpc-classifier", "--processes=1") as running,
        connected(running.address) as stub,
    ):
        found = stub.Classify(pb.ClassifyRequest(prompts=pb.Prompts(ids=int32_rows(PROMPTS))))
        with PrefillClient(f"grpc://{running.address}") as client:
            adapted = client.classify(PROMPTS, adapter=ADAPTER)
    with PrefillClient(classifier.server.base_url) as client:
        stock = client.classify(PROMPTS, adapter=ADAPTER, options=Options(stock=True))
    np.testing.assert_allclose(adapted, stock, rtol=0, atol=TOLERANCE)
    response = classifier.client.post("/classify", {"input_ids": PROMPTS})
    wanted = [each["embedding"] for each in response.json()]
    table = np.frombuffer(found.values, "<f4").reshape(-1, found.width)
    np.testing.assert_allclose(table, wanted, rtol=0, atol=TOLERANCE)
    assert found.usage.path == pb.PATH_PACKED
    assert len(found.class_names) == found.width
