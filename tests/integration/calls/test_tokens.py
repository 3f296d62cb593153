"""Prompt log-probs and single tokens on the packed path, against stock and Hugging Face."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from openai import OpenAI
from sglang.srt.sampling.custom_logit_processor import DisallowedTokensLogitsProcessor
from transformers import AutoModelForCausalLM

from sglang_prefill_ext.modelmaker.tokenizer import train_tokenizer
from tests.integration.support.client import (
    OPT_OUT,
    Client,
    Json,
    random_ids,
    setwise_body,
    wait_until,
)
from tests.integration.support.fuzz_bodies import GENERATION
from tests.integration.support.fuzz_paths import fuzz
from tests.integration.support.override_bodies import embeds
from tests.integration.support.own_server import Serving, serving
from tests.integration.support.parity import (
    TOLERANCE,
    assert_refused_alike,
    assert_same,
    assert_same_response,
    both,
    fallbacks,
)
from tests.integration.support.processes import (
    late_answer,
    passed_on,
    passed_on_by_one,
    scheduler_pid,
    sent,
    stopped,
)
from tests.integration.support.reference import Reference

pytestmark = pytest.mark.timeout(900)

RNG = random.Random(50)
PROMPT = random_ids(RNG, 40)
SHARED = random_ids(RNG, 60)
PROMPTS = [SHARED + random_ids(RNG, length) for length in (1, 7, 30)]
GREEDY = {"max_new_tokens": 1, "temperature": 0}
NOTHING = {"max_new_tokens": 0}


KNOWN_TOKENS = 7000
"""Of the server's tokenizer; the model has more, as where a vocabulary is padded."""


@pytest.fixture(scope="module")
def generator(
    model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serving]:
    tokenizer = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(KNOWN_TOKENS, 4096).save_pretrained(tokenizer)
    flags = ("--enable-prefill-only", "--sleep-on-idle", "--disable-radix-cache")
    # Stock needs these two for setwise calls, but reserves too much memory for the second.
    flags += ("--chunked-prefill-size", "-1", "--mem-fraction-static", "0.3")
    # Long enough for what is sent together to travel together, however slow the machine.
    flags += ("--enable-tokenizer-batch-encode", "--prefill-only-gather-ms", "500")
    flags += ("--tokenizer-path", str(tokenizer), "--enable-custom-logit-processor")
    flags += ("--reasoning-parser", "qwen3")
    with serving(model_dir("micro"), "tokens", *flags) as running:
        yield running


@pytest.fixture(scope="module")
def without_tokenizer(model_dir: Callable[[str], Path]) -> Iterator[Client]:
    flags = ("--enable-prefill-only", "--disable-radix-cache", "--skip-tokenizer-init")
    with serving(model_dir("micro"), "no_tokenizer", *flags) as running:
        yield running.client


@pytest.fixture(scope="module")
def oracle(model_dir: Callable[[str], Path]) -> Callable[[list[int]], Any]:
    """Log-probs over the vocabulary after every token of a prompt, from Hugging Face."""
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir("micro"), dtype=torch.float32)

    @torch.inference_mode()
    def log_probs(prompt: list[int]) -> Any:
        return torch.log_softmax(model(torch.tensor([prompt])).logits[0].double(), dim=-1).numpy()

    return log_probs


@pytest.mark.patch("P22")
def test_embeddings_that_sglang_takes_in_another_precision_end_nothing(generator: Serving) -> None:
    body = {"input_embeds": [[0.5] * 64] * 3, "sampling_params": GREEDY}
    response = generator.client.post("/generate", body)
    assert response.status_code == 400
    assert "input_embeds: SGLang takes them in bfloat16" in response.json()["error"]["message"]
    assert len(generator.client.generate(PROMPT, 1)) == 1


@pytest.mark.patch("P22")
@pytest.mark.parametrize(
    "given",
    [["word"], [], "word", "", "[]", "{}", '{"callable": 5}', '{"callable": "word"}'],
    ids=str,
)
def test_what_is_no_logit_processor_ends_a_plain_server(generator: Serving, given: Any) -> None:
    body = {"input_ids": PROMPT, "sampling_params": GREEDY, "custom_logit_processor": given}
    several = body | {"input_ids": PROMPTS[:2], "custom_logit_processor": [given, None]}
    for asked in (body, several) if isinstance(given, str) else (body,):
        response = generator.client.post("/generate", asked)
        assert response.status_code == 400
        assert f"custom_logit_processor: {given!r} is no" in response.json()["error"]["message"]
    assert len(generator.client.generate(PROMPT, 1)) == 1


def test_a_logit_processor_is_asked(generator: Serving) -> None:
    (token,) = generator.client.generate(PROMPT, 1)
    params = GREEDY | {"custom_params": {"token_ids": [token]}}
    body = {"input_ids": PROMPT, "sampling_params": params}
    processor = DisallowedTokensLogitsProcessor.to_str()
    with generator.client.counting() as moved:
        answer = generator.client.post("/generate", body | {"custom_logit_processor": processor})
    assert answer.status_code == 200
    assert answer.json()["output_ids"] != [token]
    assert moved["frontend.fallbacks.logit_processor"] == 1


@pytest.mark.patch("P26")
@pytest.mark.parametrize("sampling", [GREEDY, NOTHING], ids=["token", "nothing"])
@pytest.mark.parametrize("start", [-1, 0, 1, 20, 39, 40])
@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"top_logprobs_num": 3},
        {"token_ids_logprob": [7, 9]},
        {"top_logprobs_num": 1, "token_ids_logprob": [5], "return_text_in_logprobs": True},
    ],
    ids=["plain", "top", "listed", "all"],
)
def test_log_probs_of_a_prompt_are_stocks(
    generator: Serving, sampling: Json, start: int, wanted: Json
) -> None:
    body = {"input_ids": PROMPT, "sampling_params": sampling, "return_logprob": True}
    answer = both(generator.client, "/generate", body | {"logprob_start_len": start} | wanted)
    read = 0 if start == -1 else len(PROMPT) - start
    assert len(answer["meta_info"]["input_token_logprobs"]) == read


@pytest.mark.parametrize("wanted", [{}, {"return_logprob": True, "top_logprobs_num": 2}], ids=str)
def test_answers_with_and_without_sglangs_record_of_the_request_are_the_same(
    generator: Serving, wanted: Json
) -> None:
    """SGLang makes a record only for a request with a name; the fields have the same order."""
    body = {"input_ids": PROMPT, "sampling_params": GREEDY} | wanted
    plain = generator.client.post("/generate", body).json()
    named = generator.client.post("/generate", body | {"rid": "named"}).json()
    assert named["meta_info"]["id"] == "named"
    assert list(plain) == list(named)
    assert list(plain["meta_info"]) == list(named["meta_info"])
    assert_same(plain, named)


@pytest.mark.patch("P27")
@pytest.mark.parametrize("start", [-1, 0, 30, 59, 60])
def test_log_probs_of_prompts_that_begin_alike_are_stocks_and_computed_once(
    generator: Serving, start: int
) -> None:
    body = {
        "input_ids": PROMPTS,
        "sampling_params": GREEDY,
        "return_logprob": True,
        "logprob_start_len": start,
        "top_logprobs_num": 2,
    }
    with generator.client.counting() as moved:
        generator.client.post("/generate", body)
    own = sum(len(prompt) - len(SHARED) for prompt in PROMPTS)
    # Reads of the prefix need its last token in every row.
    extra = len(PROMPTS) - 1 if 0 <= start < len(SHARED) else 0
    assert moved["scheduler.tokens_computed"] == len(SHARED) + own + extra
    both(generator.client, "/generate", body, packed_requests=len(PROMPTS))


@pytest.mark.patch("P27")
@pytest.mark.parametrize("start", [-1, 0, 100])
def test_prompts_of_several_questions_share_their_question(generator: Serving, start: int) -> None:
    """As benchmarks send them: a task, questions, and answers for each."""
    asked = [SHARED + random_ids(RNG, 200) for _ in range(3)]
    prompts = [[*question, answer] for question in asked for answer in (5, 6, 7, 8)]
    body = {
        "input_ids": prompts,
        "sampling_params": GREEDY,
        "return_logprob": True,
        "logprob_start_len": start,
    }
    with generator.client.counting() as moved:
        generator.client.post("/generate", body)
    # Reads of the prefix need its last token in every row.
    rows = len(prompts) * (1 if start < 0 else 2)
    questions = sum(map(len, asked)) - len(asked) * (0 if start < 0 else 1)
    assert moved["scheduler.tokens_computed"] == questions + rows
    both(generator.client, "/generate", body, packed_requests=len(prompts))


def test_fuzzed_bodies_are_answered_as_by_stock(generator: Serving) -> None:
    """Without metrics, as here, SGLang makes no record of plain requests."""
    fuzz(generator.client, "/generate", GENERATION["/generate"], examples=100)


def test_log_probs_are_those_of_hugging_face(
    generator: Serving, oracle: Callable[[list[int]], Any]
) -> None:
    body = {"input_ids": PROMPTS, "sampling_params": GREEDY, "return_logprob": True}
    answers = generator.client.post("/generate", body | {"logprob_start_len": 0}).json()
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        exact = oracle(prompt)
        found = [value for value, _, _ in answer["meta_info"]["input_token_logprobs"][1:]]
        wanted = exact[np.arange(len(prompt) - 1), prompt[1:]]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=TOLERANCE)
        assert answer["output_ids"] == [int(exact[-1].argmax())]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": "a red shoe", "sampling_params": GREEDY}),
        ("/generate", {"text": ["a", "b"], "sampling_params": GREEDY}),
        ("/v1/completions", {"prompt": "a red shoe", "max_tokens": 1, "temperature": 0}),
        (
            "/v1/completions",
            {"prompt": PROMPTS, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1},
        ),
        (
            "/v1/chat/completions",
            {
                "messages": [{"role": "user", "content": "a red shoe"}],
                "max_tokens": 1,
                "temperature": 0,
                "logprobs": True,
                "top_logprobs": 3,
            },
        ),
    ],
    ids=["text", "texts", "completion", "echo", "chat"],
)
def test_every_route_answers_as_stock_does(generator: Serving, path: str, body: Json) -> None:
    prompts = body.get("text", body.get("prompt", "one"))
    count = len(prompts) if isinstance(prompts, list) else 1
    both(generator.client, path, {"model": "m"} | body, packed_requests=count)


@pytest.mark.parametrize("thinks", [True, False])
def test_a_token_of_reasoning_is_packed_and_counted(generator: Serving, thinks: bool) -> None:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "a red shoe"}],
        "max_tokens": 1,
        "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": thinks},
    }
    answer = both(generator.client, "/v1/chat/completions", body)
    assert answer["usage"]["reasoning_tokens"] == int(thinks)


@pytest.mark.parametrize("sampling", [GREEDY, NOTHING], ids=["token", "nothing"])
def test_reasoning_that_a_body_names_is_counted(generator: Serving, sampling: Json) -> None:
    body = {"input_ids": PROMPT, "sampling_params": sampling, "return_logprob": True}
    answer = both(generator.client, "/generate", body | {"require_reasoning": True})
    assert answer["meta_info"]["reasoning_tokens"] == 1


def test_the_openai_client_judges_as_before(generator: Serving) -> None:
    openai = OpenAI(base_url=f"{generator.server.base_url}/v1", api_key="none", max_retries=0)
    question = {"role": "user", "content": "Is a shoe red? Yes or no."}

    def ask(**headers: str) -> Any:
        return openai.chat.completions.create(
            model="m",
            messages=[question],
            max_tokens=1,
            temperature=0,
            logprobs=True,
            top_logprobs=5,
            extra_headers=headers,
        )

    with generator.client.counting() as moved:
        packed = ask()
    assert moved["frontend.requests.packed"] == 1
    stock = ask(**OPT_OUT)
    assert_same(packed.choices[0].model_dump(), stock.choices[0].model_dump())


def test_a_stop_token_ends_the_generation_as_in_stock(generator: Serving) -> None:
    client = generator.client
    (token,) = client.post("/generate", {"input_ids": PROMPT, "sampling_params": GREEDY}).json()[
        "output_ids"
    ]
    for more in ({}, {"no_stop_trim": True}, {"ignore_eos": True}):
        sampling = GREEDY | {"stop_token_ids": [token]} | more
        answer = both(client, "/generate", {"input_ids": PROMPT, "sampling_params": sampling})
        reason = answer["meta_info"]["finish_reason"]["type"]
        assert reason == ("length" if "ignore_eos" in more else "stop")


@pytest.mark.parametrize("at", ["begin", "middle", "end", "nowhere"])
def test_a_stop_string_ends_the_generation_as_in_stock(generator: Serving, at: str) -> None:
    client, body = generator.client, {"input_ids": PROMPT, "sampling_params": GREEDY}
    text = client.post("/generate", body).json()["text"]
    assert len(text) == 3
    stop = {"begin": text[:2], "middle": text[1], "end": text[1:], "nowhere": text + "x"}[at]
    token = client.generate(PROMPT, 1)
    for more in ({}, {"no_stop_trim": True}, {"stop_token_ids": token, "ignore_eos": True}):
        sampling = GREEDY | {"stop": [text + "y", stop, text]} | more
        answer = both(client, "/generate", body | {"sampling_params": sampling})
        reason = answer["meta_info"]["finish_reason"]
        assert reason == {"type": "stop", "matched": text if at == "nowhere" else stop}
    both(client, "/generate", body | {"rid": "a", "sampling_params": GREEDY | {"stop": stop}})
    asked = {"model": "m", "prompt": [PROMPT] * 2, "max_tokens": 1, "temperature": 0, "stop": stop}
    both(client, "/v1/completions", asked, packed_requests=2)


@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY | {"logit_bias": {"5": 40.0, "05": 90.0, "7": 60.0}},
        NOTHING | {"logit_bias": {"5": 4.0}},
        GREEDY | {"min_new_tokens": 1},
        GREEDY | {"frequency_penalty": 2.0, "presence_penalty": 2.0, "repetition_penalty": 2.0},
        {"max_new_tokens": 1, "temperature": 3.0, "top_k": 1},
        {"max_new_tokens": 1, "temperature": 3.0, "top_p": 1e-9, "logit_bias": {"5": 2.0}},
        {"max_new_tokens": 1, "temperature": 0.5, "min_p": 1.0},
    ],
    ids=["bias", "no token", "no stop", "penalties", "top k", "top p", "min p"],
)
@pytest.mark.parametrize("start", [-1, 30])
def test_what_changes_the_token_changes_it_as_in_stock(
    generator: Serving, sampling: Json, start: int
) -> None:
    client = generator.client
    body = {"input_ids": PROMPT, "return_logprob": True, "logprob_start_len": start}
    asked = {"top_logprobs_num": 3, "token_ids_logprob": [5, 7], "sampling_params": sampling}
    (token,) = client.generate(PROMPT, 1)
    if "min_new_tokens" in sampling:
        asked["sampling_params"] = sampling | {"stop_token_ids": [token]}
    answer = both(client, "/generate", body | asked)
    if "min_new_tokens" in sampling:
        assert answer["output_ids"] != [token]
    if sampling.get("logit_bias", {}).get("05"):
        assert answer["output_ids"] == [5]


TEMPERATURE = 2.0
BIAS = {7: 2.5, 11: -100.0}


def drawn(client: Client, prompts: list[list[int]], stock: bool = False, **more: Any) -> Any:
    """Answers with drawn tokens, and with the log-probs by which they were drawn."""
    bias = {str(token): value for token, value in BIAS.items()}
    sampling = {"max_new_tokens": 1, "temperature": TEMPERATURE, "logit_bias": bias} | more
    asked = {"return_logprob": True, "top_logprobs_num": 8, "token_ids_logprob": [7, 11]}
    body = {"input_ids": prompts, "sampling_params": sampling} | asked
    answer = client.post("/generate", body, stock=stock)
    assert answer.status_code == 200, answer.text
    return answer.json()


def drawn_by(log_probs: Any) -> Any:
    """Log-probs after bias and temperature."""
    logits = log_probs.copy()
    for token, value in BIAS.items():
        logits[token] += value
    return torch.log_softmax(torch.from_numpy(logits) / TEMPERATURE, dim=-1).numpy()


def test_log_probs_of_drawn_tokens_are_those_that_stock_draws_by(
    generator: Serving, oracle: Callable[[list[int]], Any]
) -> None:
    with generator.client.counting() as moved:
        packed = drawn(generator.client, PROMPTS)
    assert moved["frontend.requests.packed"] == len(PROMPTS)
    stock = drawn(generator.client, PROMPTS, stock=True)
    for prompt, one, other in zip(PROMPTS, packed, stock, strict=True):
        for name in ("output_top_logprobs", "output_token_ids_logprobs"):
            assert_same(one["meta_info"][name], other["meta_info"][name])
        ((value, token, _),) = one["meta_info"]["output_token_logprobs"]
        assert value == pytest.approx(drawn_by(oracle(prompt)[-1])[token], abs=TOLERANCE)
        assert one["output_ids"] == [token]


@pytest.mark.parametrize("limit", [{"top_k": 6}, {}], ids=["filtered", "plain"])
def test_tokens_are_drawn_as_often_as_they_are_probable(
    generator: Serving, oracle: Callable[[list[int]], Any], limit: Json
) -> None:
    draws = 1_500
    exact = np.exp(drawn_by(oracle(PROMPT)[-1]))
    order = np.argsort(-exact)
    with generator.client.counting() as moved:
        answers = drawn(generator.client, [PROMPT] * draws, **limit)
    assert moved["frontend.requests.packed"] == draws
    tokens = np.array([answer["output_ids"][0] for answer in answers])
    if limit:
        assert set(tokens) <= set(order[:6].tolist())
        counts = np.array([(tokens == token).sum() for token in order[:6]])
        expected = draws * exact[order[:6]] / exact[order[:6]].sum()
    else:  # sixteen bins of about equal probability
        place = np.empty(len(exact), dtype=np.int64)
        place[order] = np.minimum(15, (np.cumsum(exact[order]) * 16).astype(np.int64))
        counts = np.bincount(place[tokens], minlength=16)
        expected = draws * np.bincount(place, weights=exact, minlength=16)
    assert expected.min() > 40
    # Chi-square of at most 15 degrees of freedom: beyond 100 less than once in 10 ** 13 times.
    assert ((counts - expected) ** 2 / expected).sum() < 100


def test_a_stream_is_one_event(generator: Serving) -> None:
    body = {"input_ids": PROMPT, "sampling_params": GREEDY, "stream": True}
    with generator.client.counting() as moved:
        packed = generator.client.post("/generate", body).text.splitlines()
    stock = generator.client.post("/generate", body, stock=True).text.splitlines()
    assert moved["frontend.requests.packed"] == 1
    assert len(packed) == len(stock)
    assert packed[-2:] == stock[-2:]


CERTAIN = GREEDY | {"logit_bias": {"9": 1000}}
ALL_LOG_PROBS = {
    "return_logprob": True,
    "logprob_start_len": 20,
    "top_logprobs_num": 2,
    "token_ids_logprob": [5, 9],
}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"rid": "named"},
        {"stream": True},
        {"stream": True} | ALL_LOG_PROBS,
        ALL_LOG_PROBS,
        ALL_LOG_PROBS | {"return_text_in_logprobs": True},
        ALL_LOG_PROBS | {"sampling_params": NOTHING},
        ALL_LOG_PROBS | {"input_ids": PROMPTS},
        {"input_ids": PROMPTS, "rid": ["a", "b", "c"]},
        {"sampling_params": GREEDY | {"logit_bias": {"2": 1000}}},
        {"sampling_params": CERTAIN | {"stop_token_ids": [9]}},
        {"sampling_params": CERTAIN | {"stop_token_ids": [9], "no_stop_trim": True}},
        {"return_prompt_token_ids": True},
    ],
    ids=str,
)
def test_without_a_tokenizer_ids_are_answered_as_by_stock(
    without_tokenizer: Client, fields: Json
) -> None:
    body = {"input_ids": PROMPT, "sampling_params": GREEDY} | fields
    with without_tokenizer.counting() as moved:
        packed = without_tokenizer.post("/generate", body)
    stock = without_tokenizer.post("/generate", body, stock=True)
    assert (packed.status_code, stock.status_code) == (200, 200), (packed.text, stock.text)
    prompts = len(PROMPTS) if body["input_ids"] is PROMPTS else 1
    assert moved["frontend.requests.packed"] == prompts
    assert fallbacks(moved) == {}
    found, wanted = (events(each.text) for each in (packed, stock))
    assert_same(found, wanted)
    for one, other in zip(found, wanted, strict=True):
        assert "text" not in one
        assert list(one) == list(other)
        assert list(one["meta_info"]) == list(other["meta_info"])


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/generate", {"text": "a red shoe"}),
        ("/generate", {"input_ids": PROMPT, "sampling_params": GREEDY | {"stop": "a"}}),
        ("/generate", {"input_ids": PROMPT, "sampling_params": GREEDY | {"min_new_tokens": 1}}),
        ("/v1/completions", {"prompt": "a red shoe", "max_tokens": 1}),
        ("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}),
    ],
    ids=["text", "stop string", "least tokens", "completion", "completion of ids"],
)
def test_without_a_tokenizer_what_needs_one_gets_stocks_error(
    without_tokenizer: Client, path: str, fields: Json
) -> None:
    body = ({"sampling_params": GREEDY} if path == "/generate" else {"model": "m"}) | fields
    packed, stock = (without_tokenizer.post(path, body, stock=stock) for stock in (False, True))
    assert packed.status_code >= 400
    assert_same_response(packed, stock)


@pytest.mark.parametrize("token", [0, KNOWN_TOKENS - 1, KNOWN_TOKENS, 7999])
@pytest.mark.parametrize("stream", [False, True])
def test_tokens_beyond_the_tokenizer_have_stocks_text(
    generator: Serving, token: int, stream: bool
) -> None:
    biased = {"logit_bias": {str(token): 1000}, "temperature": 0}
    sampling = biased | {"max_new_tokens": 1, "skip_special_tokens": False}
    chat = {"model": "m", "messages": [{"role": "user", "content": "a shoe"}], "max_tokens": 1}
    for path, body in (
        ("/generate", {"input_ids": PROMPT, "sampling_params": sampling}),
        ("/generate", {"input_ids": [*PROMPT, 7990], "sampling_params": sampling}),
        ("/v1/chat/completions", chat | biased),
        ("/v1/completions", {"model": "m", "prompt": "a shoe", "max_tokens": 1} | biased),
    ):
        with generator.client.counting() as moved:
            packed = texts(generator.client.post(path, body | {"stream": stream}).text)
        assert moved["frontend.requests.packed"] == 1
        stock = generator.client.post(path, body | {"stream": stream}, stock=True)
        assert packed == texts(stock.text)


def texts(answer: str) -> list[Any]:
    """The text of each event of an answer, or of the whole answer."""
    return [each.get("text") or each["choices"] for each in events(answer)]


def events(answer: str) -> list[Any]:
    """The events of an answer, the answers of a list, or the one answer."""
    lines = [line.removeprefix("data: ") for line in answer.splitlines() if line]
    read = [json.loads(line) for line in lines if line != "[DONE]"]
    return read[0] if isinstance(read[0], list) else read


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"sampling_params": GREEDY | {"regex": "a|b"}, "require_reasoning": True}, "grammar"),
        ({"sampling_params": NOTHING | {"regex": "a|b"}, "return_logprob": True}, "grammar"),
        ({"sampling_params": GREEDY | {"stop_regex": ["x"]}}, "stop_regex"),
        ({"logprob_start_len": [-1]}, "unusual_input"),
    ],
    ids=["reasoning", "no token", "stop regex", "list of starts"],
)
def test_what_needs_more_than_logits_takes_the_stock_path(
    generator: Serving, fields: Json, reason: str
) -> None:
    with generator.client.counting() as moved:
        body = {"input_ids": PROMPT, "sampling_params": GREEDY} | fields
        assert generator.client.post("/generate", body).status_code == 200
    assert moved[f"frontend.fallbacks.{reason}"] == 1
    assert moved["frontend.requests.packed"] == 0


@pytest.mark.parametrize(
    "sampling", [{"max_new_tokens": 4}, GREEDY | {"n": 2}, NOTHING], ids=["long", "n", "warm-up"]
)
def test_what_is_no_decision_is_not_even_counted(generator: Serving, sampling: Json) -> None:
    with generator.client.counting() as moved:
        body = {"input_ids": PROMPT, "sampling_params": sampling}
        assert generator.client.post("/generate", body).status_code == 200
    assert not any(count for name, count in moved.items() if name.startswith("frontend"))


def test_many_clients_share_messages_and_forwards(
    generator: Serving, oracle: Callable[[list[int]], Any]
) -> None:
    rng = random.Random(51)
    prompts = [random_ids(rng, rng.randint(3, 60)) for _ in range(64)]
    bodies: list[Json] = [{"input_ids": each, "sampling_params": GREEDY} for each in prompts]
    with generator.client.counting() as moved, ThreadPoolExecutor(64) as pool:
        with stopped(scheduler_pid(generator.server)):
            replies = sent(generator.client, pool, bodies, "/generate")
        found = [reply.result().json()["output_ids"] for reply in replies]
    assert found == [[int(oracle(prompt)[-1].argmax())] for prompt in prompts]
    assert moved["scheduler.requests.ok"] < len(prompts) / 2
    assert moved["frontend.requests.packed"] == len(prompts)


def test_beside_running_generations_both_are_right(generator: Serving) -> None:
    client, rng = generator.client, random.Random(52)
    prompts = [random_ids(rng, 20) for _ in range(8)]
    alone = [client.generate(prompt, 24) for prompt in prompts]
    with ThreadPoolExecutor(16) as pool:
        running = [pool.submit(client.generate, prompt, 24) for prompt in prompts]
        tokens = [pool.submit(client.generate, prompt, 1) for prompt in prompts]
        assert [each.result() for each in running] == alone
        assert [each.result() for each in tokens] == [output[:1] for output in alone]


@pytest.mark.parametrize(
    "wrong",
    [
        {"input_ids": []},
        {"input_ids": [8_000]},
        {"input_ids": PROMPT, "return_logprob": True, "logprob_start_len": 41},
        {"input_ids": PROMPT, "return_logprob": True, "token_ids_logprob": [-1]},
        {"input_ids": PROMPT, "return_logprob": True, "token_ids_logprob": [8_000]},
        {"input_ids": [5] * 40_000},
    ],
    ids=["empty", "vocabulary", "start", "negative label", "label", "length"],
)
def test_bad_input_gets_stocks_answer_and_nothing_else_is_lost(
    generator: Serving, wrong: Json
) -> None:
    client = generator.client
    body = {"sampling_params": GREEDY} | wrong
    packed, stock = client.post("/generate", body), client.post("/generate", body, stock=True)
    assert packed.status_code == stock.status_code
    assert packed.json().keys() == stock.json().keys()
    both(client, "/generate", {"input_ids": PROMPT, "sampling_params": GREEDY})


def test_a_wrong_header_is_refused(generator: Serving) -> None:
    headers = {"x-prefill-only-timeout-ms": "soon"}
    body = {"input_ids": PROMPT, "sampling_params": GREEDY}
    refused = generator.client.http.post("/generate", json=body, headers=headers)
    assert refused.status_code == 400
    assert "x-prefill-only-timeout-ms" in refused.text


def test_clients_that_leave_and_aborts_leave_nothing_behind(generator: Serving) -> None:
    client = generator.client
    before = client.memory()
    body = {"input_ids": PROMPTS[2], "sampling_params": GREEDY}
    with ThreadPoolExecutor(8) as pool:
        with stopped(scheduler_pid(generator.server)):
            late = [passed_on(client, pool, body, "/generate") for _ in range(4)]
            with ExitStack() as leaving:
                for _ in range(3):
                    leaving.enter_context(closing(passed_on_by_one(client, "/generate", body)))
            wait_until(lambda: client.status()["frontend"]["in_flight"] == len(late))
            client.post("/abort_request", {"rid": "", "abort_all": True})
        assert {each.result().status_code for each in late} <= {200, 400, 503}
    client.assert_memory_returns_to(before)
    assert client.status()["frontend"]["in_flight"] == 0
    both(client, "/generate", body)


def test_a_deadline_that_has_passed_is_an_error(generator: Serving) -> None:
    body = {"input_ids": PROMPT, "sampling_params": GREEDY}
    late = late_answer([generator.server], generator.client, "/generate", body)
    assert late.status_code == 504


ANCHOR = 99


def test_setwise_scores_are_stocks_and_those_of_hugging_face(
    generator: Serving, oracle: Callable[[list[int]], Any], reference: Reference
) -> None:
    anchor = reference.tokenizer.convert_ids_to_tokens(ANCHOR)
    body = setwise_body(ANCHOR, anchor, 40, [[5, 9, 2], [30], [0, 0, 4, 7]])
    body["label_token_ids"] = [5, 9]
    own = [[5, 9], [17], [5, 9, 4_000]]
    # Embeddings for all anchors of two items, so in the places that are read.
    own_embeds = [embeds(1, 3).tolist(), None, embeds(2, 4).tolist()]
    overrides = {"embed_override_token_id": ANCHOR}
    for fields in (
        {},
        {"label_token_ids": own},
        {"apply_softmax": True, "temperature": 0.5},
        {"items": [body["items"][0]] * 2},
        {"return_token_logprobs": True},
        overrides | {"item_embed_overrides": own_embeds},
        overrides | {"item_embed_overrides": own_embeds, "apply_softmax": True},
    ):
        answer = both(generator.client, "/v1/score", body | fields)
        assert len(answer["scores"]) == len((body | fields)["items"])
    scores = both(generator.client, "/v1/score", body)["scores"]
    for item, matrix in zip(body["items"], scores, strict=True):
        prompt = body["query"] + item
        places = [place for place, token in enumerate(prompt) if token == ANCHOR]
        wanted = np.exp(oracle(prompt)[places][:, [5, 9]])
        np.testing.assert_allclose(matrix, wanted, rtol=0, atol=TOLERANCE)


def test_setwise_texts_and_refusals_are_stocks(generator: Serving, reference: Reference) -> None:
    anchor = text = reference.tokenizer.eos_token
    body: Json = {"query": "Which? ", "label_token_ids": [5], "score_extraction_token": anchor}
    items = [f"one {text} two {text}", f"{text} three"]
    assert len(both(generator.client, "/v1/score", body | {"items": items})["scores"]) == 2
    for fields in (
        {"items": ["none"]},
        {"items": items, "query": f"{text} before"},
        {"items": items, "item_first": True},
        {"items": items, "score_extraction_token": "no such token"},
    ):
        assert_refused_alike(generator.client, "/v1/score", body | fields)
