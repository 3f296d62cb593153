"""LoRA adapters on the packed path: SGLang's numbers, prefixes, errors and unloading."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from sglang_prefill_ext.frontend.options import KEEP_PREFIX_HEADER, TIMEOUT_HEADER
from tests.integration.support.adapters import (
    LORA_FLAGS,
    Adapter,
    make_adapter,
    unload,
    wait_until_unlisted,
)
from tests.integration.support.client import Client, Json, random_ids, score_body, wait_until
from tests.integration.support.own_server import Serving, serving
from tests.integration.support.parity import TOLERANCE, assert_paths_agree, assert_same, both
from tests.integration.support.processes import held_back, sent

pytestmark = pytest.mark.timeout(900)

BASE = ""
RANKS = {"a": 4, "b": 8}
NAMES = [BASE, *RANKS]
RNG = random.Random(17)
SHARED = random_ids(RNG, 60)
PROMPTS = [SHARED + random_ids(RNG, length) for length in (1, 9, 30)]
TEXT = "which is a fruit? apple"
SAMPLING = {"max_new_tokens": 1, "temperature": 0}
KEEP = {KEEP_PREFIX_HEADER: "on"}
FORWARD_TOKENS = 512


@pytest.fixture(scope="module")
def adapters(
    model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Adapter]:
    directory = tmp_path_factory.mktemp("adapters")
    return {
        name: make_adapter(name, model_dir("qwen3"), directory, rank=rank, seed=rank)
        for name, rank in RANKS.items()
    }


@pytest.fixture(scope="module")
def running(model_dir: Callable[[str], Path], adapters: dict[str, Adapter]) -> Iterator[Serving]:
    flags = ("--enable-prefill-only", "--sleep-on-idle", "--served-model-name", "base")
    # Two slots for three, the model itself and two adapters, so that they evict each other.
    flags += (*LORA_FLAGS, "--max-loras-per-batch", "2", "--prefill-only-launch-tokens", "100000")
    flags += ("--prefill-only-max-forward-tokens", str(FORWARD_TOKENS))
    flags += ("--lora-paths", *(adapter.named_path for adapter in adapters.values()))
    with serving(model_dir("qwen3"), "adapters", *flags) as server_and_client:
        yield server_and_client


@pytest.fixture(scope="module")
def client(running: Serving) -> Client:
    return running.client


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


@pytest.fixture(scope="module")
def oracle(
    model_dir: Callable[[str], Path], adapters: dict[str, Adapter]
) -> Callable[[str, list[int]], Any]:
    """Log-probs over the vocabulary after every token of a prompt, from Hugging Face."""
    models: dict[str, Any] = {}
    for name in NAMES:
        model = AutoModelForCausalLM.from_pretrained(model_dir("qwen3"), dtype=torch.float32)
        if name:
            adapters[name].merge_into(model)
        models[name] = model

    @torch.inference_mode()
    def log_probs(name: str, prompt: list[int]) -> Any:
        logits = models[name](torch.tensor([prompt])).logits[0]
        return logits.double().log_softmax(-1).numpy()

    return log_probs


def asked(name: str, prompts: Any, **fields: Any) -> Json:
    """A request of ``/generate`` for log-probs of two tokens and one new token."""
    kind = "text" if isinstance(prompts, str) else "input_ids"
    body = {kind: prompts, "sampling_params": SAMPLING, "return_logprob": True}
    body |= {"token_ids_logprob": [7, 9]} | fields
    return body | ({"lora_path": name} if name else {})


# Numbers


@pytest.mark.patch("P50", "P51")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("start", [-1, 0, 40])
def test_log_probs_are_stocks_and_those_of_the_merged_model(
    client: Client, oracle: Callable[[str, list[int]], Any], name: str, start: int
) -> None:
    body = asked(name, PROMPTS, logprob_start_len=start)
    for prompt, answer in zip(
        PROMPTS, both(client, "/generate", body, packed_requests=len(PROMPTS)), strict=True
    ):
        exact, meta = oracle(name, prompt), answer["meta_info"]
        ((value, token, _),) = meta["output_token_logprobs"]
        assert value == pytest.approx(exact[-1].max(), abs=TOLERANCE)
        assert token == exact[-1].argmax()
        for value, token, _ in meta["output_token_ids_logprobs"][0]:
            assert value == pytest.approx(exact[-1][token], rel=1e-6, abs=TOLERANCE)
        # SGLang leaves out the log-prob of the first token, which follows no read token.
        read = meta["input_token_logprobs"][1:]
        assert len(read) == (0 if start == -1 else len(prompt) - start - 1)
        for at, (value, token, _) in enumerate(read, start=start):
            assert value == pytest.approx(exact[at][token], rel=1e-6, abs=TOLERANCE)


def test_adapters_answer_otherwise_than_the_model_and_each_other(client: Client) -> None:
    answers = [client.post("/generate", asked(name, PROMPTS[0])).json() for name in NAMES]
    values = [answer["meta_info"]["output_token_ids_logprobs"][0][0][0] for answer in answers]
    gaps = np.abs(np.subtract.outer(values, values))[np.triu_indices(len(values), 1)]
    assert (gaps > 100 * TOLERANCE).all()


def test_texts_and_the_openai_way_of_naming_an_adapter(
    client: Client, model_dir: Callable[[str], Path], oracle: Callable[[str, list[int]], Any]
) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(model_dir("qwen3"))
    exact = oracle("a", tokenizer.encode(TEXT))[-1]
    answer = both(client, "/generate", asked("a", TEXT))
    ((value, token, _),) = answer["meta_info"]["output_token_logprobs"]
    assert (value, token) == (pytest.approx(exact.max(), abs=TOLERANCE), exact.argmax())
    completion = {"prompt": TEXT, "max_tokens": 1, "temperature": 0, "logprobs": 1}
    answer = both(client, "/v1/completions", completion | {"model": "base:a"})
    assert answer["choices"][0]["logprobs"]["token_logprobs"] == [
        pytest.approx(exact.max(), abs=TOLERANCE)
    ]


def test_a_batch_that_names_an_adapter_for_each_prompt(client: Client) -> None:
    body = asked("", PROMPTS) | {"lora_path": ["b", None, "a"]}
    found = both(client, "/generate", body, packed_requests=len(PROMPTS))
    for name, prompt, answer in zip(["b", "", "a"], PROMPTS, found, strict=True):
        alone = client.post("/generate", asked(name, prompt)).json()
        assert_same(answer["output_ids"], alone["output_ids"])
        of_label = "output_token_ids_logprobs"
        assert_same(answer["meta_info"][of_label], alone["meta_info"][of_label])


def test_scores_are_those_of_the_model_itself(client: Client) -> None:
    """SGLang's scoring routes ignore adapters, whatever model a request names."""
    plain = assert_paths_agree(client, score_body(1, 40, [3] * 5))
    named = assert_paths_agree(client, score_body(1, 40, [3] * 5, model="base:a"))
    np.testing.assert_allclose(plain["scores"], named["scores"], rtol=0, atol=TOLERANCE)


# Requests beside each other


def test_mixed_traffic_gets_the_answers_that_each_gets_alone(
    client: Client, pool: ThreadPoolExecutor
) -> None:
    rng = random.Random(23)
    bodies = [
        asked(rng.choice(NAMES), SHARED[: rng.choice([0, 60])] + random_ids(rng, length))
        for length in [3, 8, 20] * 10
    ]
    scores = [score_body(seed, 30, [4] * 6) for seed in range(4)]
    with client.counting() as moved:
        scored = [pool.submit(client.score, body) for body in scores]
        replies = list(pool.map(lambda body: client.post("/generate", body), bodies))
        found = [reply.result() for reply in scored]
    assert moved["frontend.requests.packed"] == len(bodies) + len(scores)
    assert not any(count for name, count in moved.items() if "fallbacks" in name)
    for body, reply in zip(bodies, replies, strict=True):
        assert_same(reply.json(), client.post("/generate", body, stock=True).json())
    for body, answer in zip(scores, found, strict=True):
        assert_same(answer, client.score(body, stock=True))


@pytest.mark.parametrize(
    ("names", "forwards"),
    [(["a", "b", "a", "b"], 1), (["", "b", "", "b"], 1), (["a", "", "b", "a", ""], 2)],
)
def test_a_forward_has_as_many_adapters_as_there_are_slots(
    running: Serving, pool: ThreadPoolExecutor, names: list[str], forwards: int
) -> None:
    """Prompts differ in length, and some read more than their last token."""
    starts = [-1, -1, -1, 30, -1]
    bodies = [
        asked(name, SHARED[:at] + PROMPTS[at % 3], logprob_start_len=starts[at])
        for at, name in enumerate(names)
    ]
    client = running.client
    wanted = [client.post("/generate", body, stock=True).json() for body in bodies]
    client.post("/flush_cache", {}).raise_for_status()
    with client.counting() as moved:
        with held_back(running.server, client, pool, bodies, "/generate") as replies:
            pass
        found = [reply.result().json() for reply in replies]
    for answer, own in zip(found, wanted, strict=True):
        assert_same(answer, own)
    assert moved["scheduler.forwards"] == forwards


def test_generations_keep_their_adapter_beside_packed_requests_of_others(
    client: Client, pool: ThreadPoolExecutor
) -> None:
    sampling = {"max_new_tokens": 24, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": SHARED, "sampling_params": sampling, "lora_path": "a"}
    alone = client.post("/generate", body).json()["output_ids"]

    def ran_beside() -> bool:
        """Whether requests of both other kinds were answered before the end of a generation."""
        answered = 0
        with client.counting() as moved:
            generation = pool.submit(client.post, "/generate", body)
            while not generation.done():
                for name in (BASE, "b"):
                    client.post("/generate", asked(name, PROMPTS[0])).raise_for_status()
                    answered += 1
        assert generation.result().json()["output_ids"] == alone
        assert moved["frontend.requests.packed"] == answered
        return answered > 2  # the last two may have come later

    wait_until(ran_beside)


# The prefix cache


def test_a_prefix_is_found_by_requests_with_its_adapter_alone(client: Client) -> None:
    prompt = random_ids(random.Random(5), 300)

    def cached(name: str) -> int:
        body = asked(name, prompt)
        answer = client.http.post("/generate", json=body, headers=KEEP).json()
        alone = client.post("/generate", body, stock=True).json()
        assert_same(answer, alone)
        # SGLang's requests find in the cache what packed requests leave there, and vice versa.
        assert alone["meta_info"]["cached_tokens"] == len(prompt) - 1
        found: int = answer["meta_info"]["cached_tokens"]
        return found

    assert [cached("a"), cached("a")] == [0, len(prompt) - 1]
    assert [cached("b"), cached(BASE)] == [0, 0]
    assert cached("b") == len(prompt) - 1


def test_the_prefix_of_a_divided_request_is_found_by_requests_with_its_adapter_alone(
    client: Client,
) -> None:
    rng = random.Random(6)
    shared = random_ids(rng, FORWARD_TOKENS - 200)
    prompts = [shared + random_ids(rng, 100) for _ in range(4)]
    names, found, answers = ["a", "b", "a", "b", BASE], list[tuple[int, int]](), list[Any]()
    for name in names:
        with client.counting() as moved:
            answer = client.http.post("/generate", json=asked(name, prompts), headers=KEEP)
        assert moved["frontend.requests.packed"] == len(prompts)
        found.append((moved["scheduler.forwards"], moved["scheduler.tokens_computed"]))
        answers.append(answer.json())
    new, again = (2, len(shared) + 400), (1, 400)
    assert found == [new, new, again, again, new]
    for name, answer in zip(names, answers, strict=True):
        assert_same(answer, client.post("/generate", asked(name, prompts), stock=True).json())


# Errors, and what they leave


@pytest.mark.patch("P22")
@pytest.mark.parametrize("fields", [{"lora_path": ["a"]}, {"lora_id": "a"}, {"lora_id": ["a"]}])
@pytest.mark.parametrize("new_tokens", [1, 2])
def test_a_prompt_whose_adapter_ends_a_plain_server_is_refused(
    client: Client, fields: Json, new_tokens: int
) -> None:
    """The adapter is let go of, or a later test could not unload it."""
    sampling = SAMPLING | {"max_new_tokens": new_tokens}
    response = client.post("/generate", asked(BASE, TEXT, sampling_params=sampling) | fields)
    assert response.status_code == 400
    assert f"{next(iter(fields))}: " in response.json()["error"]["message"]


@pytest.mark.patch("P79")
@pytest.mark.parametrize("names", [["a", "b", "a", "b"], ["a", "b"], ["a"], []])
@pytest.mark.parametrize("stock", [False, True])
def test_a_list_of_adapters_has_one_for_each_prompt(
    client: Client, names: list[str], *, stock: bool
) -> None:
    """Of more, the use of the last would never end, and a later test could not unload it."""
    response = client.post("/generate", asked(BASE, PROMPTS) | {"lora_path": names}, stock=stock)
    assert response.status_code == 400
    assert f"{len(names)} adapters for 3 prompts" in response.json()["error"]["message"]


def test_an_unknown_adapter_gets_stocks_error(client: Client) -> None:
    body = asked("nobody", PROMPTS[0])
    packed, stock = (client.post("/generate", body, stock=stock) for stock in (False, True))
    assert packed.status_code == stock.status_code == 400
    assert packed.json() == stock.json()
    assert "nobody" in packed.text


def test_an_adapter_is_unloaded_only_when_its_requests_are_answered(
    running: Serving, pool: ThreadPoolExecutor
) -> None:
    client, body = running.client, asked("a", PROMPTS[1])
    wanted = client.post("/generate", body, stock=True).json()
    with held_back(running.server, client, pool, [body], "/generate") as replies:
        unloading = pool.submit(unload, client, "a")
        wait_until_unlisted(client, "a")
    assert_same(replies[0].result().json(), wanted)
    assert unloading.result().json()["success"]
    # SGLang loads the adapter again when a request names it.
    assert_same(both(client, "/generate", body), wanted)


def test_every_end_of_a_request_lets_go_of_its_adapter(
    running: Serving, pool: ThreadPoolExecutor
) -> None:
    client, body = running.client, asked("b", PROMPTS[1])
    with held_back(running.server, client, pool, [body], "/generate") as replies:
        (expired,) = sent(client, pool, [body], "/generate", {TIMEOUT_HEADER: "1"})
        with pytest.raises(httpx.ReadTimeout):
            client.http.post("/generate", json=body, timeout=0.3)
    assert replies[0].result().status_code == 200
    assert expired.result().status_code == 504
    assert client.post("/generate", asked("b", [])).status_code == 400
    assert unload(client, "b").json()["success"]


def test_an_adapter_that_is_loaded_later_is_packed_too(
    client: Client, adapters: dict[str, Adapter]
) -> None:
    loading = {"lora_name": "late", "lora_path": str(adapters["b"].path)}
    assert client.post("/load_lora_adapter", loading).json()["success"]
    late = both(client, "/generate", asked("late", PROMPTS[1]))
    assert_same(late, client.post("/generate", asked("b", PROMPTS[1])).json())
    assert unload(client, "late").json()["success"]
