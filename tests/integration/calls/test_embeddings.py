"""Embeddings of prompts on the packed path."""

from __future__ import annotations

import base64
import json
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
from transformers import AutoModel, AutoModelForCausalLM

from sglang_prefill_ext.client import PrefillClient
from sglang_prefill_ext.frontend.options import TIMEOUT_HEADER
from sglang_prefill_ext.grpc_frontend import prefill_pb2 as pb
from tests.integration.calls.vector_calls import ADAPTER, INSTRUCTED, PROMPTS, TEXTS, refusal_of
from tests.integration.support.adapters import Adapter, make_adapter, unload, wait_until_unlisted
from tests.integration.support.client import OPT_OUT, Json, random_ids
from tests.integration.support.fuzz_bodies import EMBEDDINGS
from tests.integration.support.fuzz_paths import fuzz
from tests.integration.support.grpc_frontends import connected, front_ends
from tests.integration.support.override_bodies import PLACEHOLDER, embeds
from tests.integration.support.own_server import Serving, serving
from tests.integration.support.parity import TOLERANCE, assert_refused_alike, fallbacks, from_both
from tests.integration.support.processes import scheduler_pid, sent, stopped
from tests.integration.support.reference import Reference
from tests.unit.grpc_frontend.calls import int32_rows

pytestmark = pytest.mark.timeout(900)

ONE = {"max_new_tokens": 1}
DIMENSIONS = (16, 32)


@pytest.fixture(scope="module")
def attach(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's socket for gRPC front ends."""
    return tmp_path_factory.mktemp("attach") / "private" / "engine.sock"


@pytest.fixture(scope="module")
def adapter(model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Adapter:
    return make_adapter(ADAPTER, model_dir("micro"), tmp_path_factory.mktemp("adapter"), rank=4)


@pytest.fixture(scope="module")
def embedder(model_dir: Callable[[str], Path], attach: Path, adapter: Adapter) -> Iterator[Serving]:
    flags = ("--is-embedding", "--enable-prefill-only", "--sleep-on-idle")
    # Long enough for what is sent together to travel together, however slow the machine.
    flags += ("--prefill-only-gather-ms", "500", f"--prefill-only-attach={attach}", *adapter.flags)
    flags += ("--json-model-override-args", json.dumps({"matryoshka_dimensions": DIMENSIONS}))
    with serving(model_dir("micro"), "embeddings", *flags) as running:
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


@pytest.mark.patch("P24")
@pytest.mark.parametrize(
    "prompts",
    [PROMPTS[2], PROMPTS, INSTRUCTED, TEXTS[0], TEXTS],
    ids=["ids", "list", "instructed", "text", "texts"],
)
def test_embeddings_are_stocks(embedder: Serving, prompts: Any) -> None:
    packed, stock = from_both(embedder.client, "/v1/embeddings", {"model": "m", "input": prompts})
    found, wanted = (
        [each.pop("embedding") for each in answer["data"]] for answer in (packed, stock)
    )
    np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE)
    assert packed == stock


@pytest.mark.parametrize("path", EMBEDDINGS)
def test_fuzzed_bodies_are_answered_as_by_stock(embedder: Serving, path: str) -> None:
    fuzz(embedder.client, path, EMBEDDINGS[path])


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
    found, stock = from_both(embedder.client, "/v1/embeddings", body | {"embed_overrides": own})
    packed = [each["embedding"] for each in found["data"]]
    for number, each in enumerate(stock["data"]):
        np.testing.assert_allclose(packed[number], each["embedding"], rtol=0, atol=TOLERANCE)
    wanted = [oracle(prompt, given) for prompt, given in zip(prompts, own, strict=True)]
    np.testing.assert_allclose(packed, wanted, rtol=0, atol=TOLERANCE)
    own[1] = None
    from_both(embedder.client, "/v1/embeddings", body | {"embed_overrides": own})


def test_texts_have_placeholders_too(embedder: Serving, reference: Reference) -> None:
    text = reference.tokenizer.eos_token
    body = {
        "model": "m",
        "input": [f"a {text} shoe {text}", "a shoe"],
        "embed_override_token_id": reference.tokenizer.eos_token_id,
        "embed_overrides": [embeds(5, 2).tolist(), None],
    }
    packed, stock = from_both(embedder.client, "/v1/embeddings", body)
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
    assert_refused_alike(embedder.client, "/v1/embeddings", body)


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
        found, wanted = from_both(embedder.client, "/encode", body)
        assert isinstance(found, list) is isinstance(wanted, list)
        listed = [answer if isinstance(answer, list) else [answer] for answer in (found, wanted)]
        for one, other in zip(*listed, strict=True):
            np.testing.assert_allclose(one["embedding"], other["embedding"], atol=TOLERANCE)
            assert one.keys() == other.keys()
            assert one["meta_info"].keys() == other["meta_info"].keys()
            for name in ("finish_reason", "prompt_tokens", "weight_version", "num_retractions"):
                assert one["meta_info"][name] == other["meta_info"][name]


def test_an_adapter_makes_stocks_vectors_and_those_of_the_merged_model(
    embedder: Serving, model_dir: Callable[[str], Path], adapter: Adapter
) -> None:
    merged: Any = AutoModelForCausalLM.from_pretrained(model_dir("micro"), dtype=torch.float32)
    adapter.merge_into(merged)
    body = {"model": f"m:{ADAPTER}", "input": PROMPTS}
    found, stock = from_both(embedder.client, "/v1/embeddings", body)
    packed, wanted = ([each["embedding"] for each in data["data"]] for data in (found, stock))
    np.testing.assert_allclose(packed, wanted, rtol=0, atol=TOLERANCE)
    for prompt, vector in zip(PROMPTS, packed, strict=True):
        with torch.inference_mode():
            state = merged.model(torch.tensor([prompt])).last_hidden_state[0, -1].double()
        np.testing.assert_allclose(vector, state / state.norm(), rtol=0, atol=TOLERANCE)
    one, other = from_both(
        embedder.client, "/encode", {"input_ids": PROMPTS[1], "lora_path": ADAPTER}
    )
    np.testing.assert_allclose(one["embedding"], other["embedding"], rtol=0, atol=TOLERANCE)


def test_every_end_lets_go_of_the_adapter(embedder: Serving) -> None:
    client, body = embedder.client, {"input_ids": PROMPTS[1], "lora_path": ADAPTER}
    late = {TIMEOUT_HEADER: "1"}
    for wrong in ("x", [ADAPTER]):  # the second is a list for one prompt
        assert_refused_alike(client, "/encode", body | {"lora_path": wrong})
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
    from_both(client, "/encode", body)


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


@pytest.mark.parametrize("dimensions", DIMENSIONS)
def test_shorter_vectors_are_the_beginnings_of_whole_ones_at_unit_length(
    embedder: Serving, dimensions: int
) -> None:
    body = {"model": "m", "input": PROMPTS}
    begin = vectors(embedder.client.post("/v1/embeddings", body))[:, :dimensions]
    wanted = begin / np.linalg.norm(begin, axis=1, keepdims=True)
    answers = from_both(embedder.client, "/v1/embeddings", body | {"dimensions": dimensions})
    found = [[each["embedding"] for each in answer["data"]] for answer in answers]
    with PrefillClient(embedder.server.base_url) as client:
        found.append(client.embed(PROMPTS, dimensions=dimensions).tolist())
    for each in found:
        np.testing.assert_allclose(each, wanted, rtol=0, atol=TOLERANCE)


def test_vectors_of_several_lengths_are_computed_together(embedder: Serving) -> None:
    client, bodies = embedder.client, [{"model": "m", "input": prompt} for prompt in PROMPTS]
    bodies = [body | {"dimensions": n} for body in bodies for n in (None, *DIMENSIONS)]
    wanted = [vectors(client.post("/v1/embeddings", body, stock=True)) for body in bodies]
    with ThreadPoolExecutor(len(bodies)) as pool, client.counting() as moved:
        with stopped(scheduler_pid(embedder.server)):
            replies = sent(client, pool, bodies, "/v1/embeddings")
        found = [vectors(reply.result()) for reply in replies]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE)
    assert moved["frontend.requests.packed"] == len(bodies)
    assert moved["scheduler.forwards"] < len(bodies) / 2


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


@pytest.mark.patch("P22")
@pytest.mark.parametrize("positions", [[2**63], [[0], [1, 2]]], ids=str)
def test_positions_that_end_a_plain_server_are_refused_where_none_is_read(
    embedder: Serving, positions: list[Any]
) -> None:
    assert refusal_of(embedder, positions) == 400
    ignored = {"input_ids": [5, 6, 7], "token_indices_to_pool": [9]}
    assert embedder.client.post("/encode", ignored).status_code == 200


def test_embeddings_over_grpc_are_those_of_http(embedder: Serving, attach: Path) -> None:
    prompts = {
        "texts": (TEXTS, pb.Prompts(texts=pb.Texts(texts=TEXTS))),
        "ids": (PROMPTS, pb.Prompts(ids=int32_rows(PROMPTS))),
    }
    with (
        front_ends(attach, "grpc-embedder", "--processes=1") as running,
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
        assert fallbacks(moved) == {}
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
