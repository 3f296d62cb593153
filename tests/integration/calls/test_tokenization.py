"""Texts on the running server are spliced and encoded fast, and get Hugging Face's ids."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from sglang_prefill_ext.texts.sample_texts import splice_cases
from tests.integration.support.client import OPT_OUT, Client, Json, wait_until
from tests.integration.support.parity import assert_same
from tests.integration.support.reference import Reference

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

LABELS = [5, 60, 700]
CASES = [case for case in splice_cases(["<|im_start|>", "<|endoftext|>"]) if all(case[1])][::8]
"""Shared texts, each with texts that go before and behind it."""


@pytest.fixture(scope="module")
def tokenizer(client: Client) -> Json:
    """The server's way of encoding texts, once it is chosen."""

    def status() -> Json:
        found: Json = client.status()["frontend"]["tokenizer"]
        return found

    wait_until(lambda: status()["ready"], timeout_s=600)
    return status()


def test_the_status_names_what_encodes(tokenizer: Json) -> None:
    assert (tokenizer["splice"], tokenizer["why_no_splice"], tokenizer["why_plain"]) == (
        True,
        "",
        "",
    )
    assert tokenizer["encoder"] == "fastokens"
    verdict = tokenizer["libraries"]["fastokens"]
    assert (verdict["difference"], verdict["texts"]) == ("", 100_000)


@pytest.mark.usefixtures("tokenizer")
@pytest.mark.parametrize("item_first", [False, True])
def test_texts_score_as_the_ids_that_hugging_face_makes_of_them(
    client: Client, reference: Reference, item_first: bool
) -> None:
    with client.counting() as moved:
        for shared, items in CASES:
            whole = [item + shared if item_first else shared + item for item in items]
            ids = {"query": [], "items": reference.tokenizer(whole)["input_ids"]}
            text = {"query": shared, "items": items, "item_first": item_first}
            fields = {"label_token_ids": LABELS, "return_token_logprobs": True}
            assert_same(client.score(text | fields), client.score(ids | fields))
    assert moved["frontend.requests.packed"] == 2 * len(CASES)
    assert moved["frontend.spliced"] >= len(CASES) // 2
    assert moved["frontend.encoding_mismatches"] == 0
    assert "sglang:prefill_only_spliced_total" in client.http.get("/metrics").text


@pytest.mark.usefixtures("tokenizer")
def test_a_text_that_is_no_unicode_is_refused_as_ever(client: Client) -> None:
    body = b'{"query": "a b c", "items": ["\\ud800", "x"], "label_token_ids": [5]}'
    answers = [
        client.http.post("/v1/score", content=body, headers={"x-prefill-only": mode})
        for mode in ("on", "off")
    ]
    assert [answer.status_code for answer in answers] == [answers[1].status_code] * 2
    assert answers[0].status_code >= 400


@pytest.mark.usefixtures("tokenizer")
@pytest.mark.parametrize("item_first", [False, True])
def test_texts_too_long_for_the_context_are_refused_as_by_stock_and_encoded_once(
    client: Client, item_first: bool
) -> None:
    body = {"query": "the word " * 20_000, "items": ["a", "b"], "label_token_ids": LABELS}
    with client.counting() as moved:
        found = client.post("/v1/score", body | {"item_first": item_first})
    assert moved["frontend.fallbacks.prompt_too_long"] == 1
    assert moved["frontend.text_batches"] == 0, "SGLang has encoded texts again"
    stock = client.post("/v1/score", body | {"item_first": item_first}, stock=True)
    assert "is longer than the model's context length" in stock.text
    assert (found.status_code, found.json()) == (stock.status_code, stock.json())


TEXTS = [shared + items[0] for shared, items in CASES]
GREEDY = {"max_new_tokens": 1, "temperature": 0}


def read_of(text: str | list[str], **sampling: int) -> Json:
    """A request for all log-probs of a text, or of each."""
    fields = {"return_logprob": True, "logprob_start_len": 0}
    return {"text": text, "sampling_params": GREEDY | sampling} | fields


@pytest.mark.patch("P56")
@pytest.mark.usefixtures("tokenizer")
def test_texts_that_come_together_are_answered_as_by_stock(
    client: Client, reference: Reference, pool: ThreadPoolExecutor
) -> None:
    """Some are packed, some generate; one is too long and one is invalid."""
    asked = [read_of(text, max_new_tokens=1 + number % 2 * 2) for number, text in enumerate(TEXTS)]
    asked += [read_of("the word " * 20_000), read_of("\ud800")]
    with client.counting() as moved:
        sent = [pool.submit(_post, client, body) for body in asked]
        found = [each.result() for each in sent]
    assert 1 <= moved["frontend.text_batches"] <= len(asked)
    assert moved["frontend.requests.packed"] == (len(TEXTS) + 1) // 2
    assert moved["frontend.encoding_mismatches"] == 0
    with client.counting() as moved:
        stock = [_post(client, body, **OPT_OUT) for body in asked]
    assert moved["frontend.text_batches"] == 0
    for one, other in zip(found, stock, strict=True):
        assert one.status_code == other.status_code
        assert_same(_untimed(one.json()), _untimed(other.json()))
    assert [one.status_code == 200 for one in found] == [True] * len(TEXTS) + [False] * 2
    for text, one in zip(TEXTS, found, strict=False):
        ids = reference.tokenizer(text)["input_ids"]
        read = one.json()["meta_info"]["input_token_logprobs"]
        assert [token for _, token, _ in read] == ids


@pytest.mark.patch("P57")
@pytest.mark.usefixtures("tokenizer")
def test_texts_of_a_list_are_encoded_in_one_batch(client: Client) -> None:
    completions = {"model": "m", "prompt": TEXTS, "max_tokens": 3, "temperature": 0}
    for path, body in (("/generate", read_of(TEXTS)), ("/v1/completions", completions)):
        with client.counting() as moved:
            found = client.post(path, body)
        assert moved["frontend.text_batches"] == 1
        stock = client.post(path, body, stock=True)
        assert (found.status_code, stock.status_code) == (200, 200)
        assert_same(_untimed(found.json()), _untimed(stock.json()))


def chat_of(text: str) -> Json:
    return {"messages": [{"role": "user", "content": text}]}


CHAT_PATH = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
PARTS = [{"type": "text", "text": "<|im_end|> in"}, {"type": "text", "text": "parts"}]
CHATS: list[Json] = [
    *map(chat_of, TEXTS),
    {"messages": [{"role": "user", "content": PARTS}], "max_tokens": 3},
    {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "naïve 漢字"}]},
    {"messages": [{"role": "user", "content": "which?"}], "tools": [TOOL], "max_tokens": 3},
    {
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "It is"}],
        "continue_final_message": True,
    },
]


@pytest.mark.patch("P59")
@pytest.mark.usefixtures("tokenizer")
def test_chats_that_come_together_are_answered_as_by_stock(
    client: Client, reference: Reference, pool: ThreadPoolExecutor
) -> None:
    """Some are packed, some generate; some are too long or invalid."""
    wrong = [chat_of("the word " * 20_000), chat_of("\ud800"), {"messages": []}]
    asked = [{"model": "m", "max_tokens": 1, "temperature": 0} | each for each in CHATS + wrong]
    with client.counting() as moved:
        sent = [pool.submit(_post, client, body, CHAT_PATH) for body in asked]
        found = [each.result() for each in sent]
    assert moved["frontend.chats"] == len(CHATS) + 1, "all but no Unicode and no message"
    assert moved["frontend.encoding_mismatches"] == 0
    stock = [_post(client, body, CHAT_PATH, **OPT_OUT) for body in asked]
    for one, other in zip(found, stock, strict=True):
        assert one.status_code == other.status_code
        assert_same(one.json(), other.json())
    assert [one.status_code == 200 for one in found] == [True] * len(CHATS) + [False] * 3
    for text, one in zip(TEXTS, found, strict=False):
        chat = chat_of(text)["messages"]
        ids = reference.tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
        assert one.json()["usage"]["prompt_tokens"] == len(ids)


@pytest.mark.patch("P60")
@pytest.mark.usefixtures("tokenizer")
def test_a_chat_that_wants_the_stock_path_is_encoded_there(client: Client) -> None:
    body = {"model": "m", "max_tokens": 2, "temperature": 0} | chat_of("a red shoe")
    for headers, encoded in ((OPT_OUT, 0), ({}, 1)):
        with client.counting() as moved:
            assert _post(client, body, CHAT_PATH, **headers).status_code == 200
        assert moved["frontend.chats"] == encoded


def _post(client: Client, body: Json, path: str = "/generate", **headers: str) -> httpx.Response:
    """Send a body in which a lone surrogate is an escape, as httpx would not write it."""
    headers |= {"content-type": "application/json"}
    return client.http.post(path, content=json.dumps(body), headers=headers)


def _untimed(answer: Any) -> Any:
    """An answer without the times that SGLang adds with metrics."""
    if isinstance(answer, list):
        return [_untimed(each) for each in answer]
    if "meta_info" not in answer:
        return answer
    asked = ("prompt_tokens", "finish_reason", "input_token_logprobs", "output_token_logprobs")
    return answer | {"meta_info": {name: answer["meta_info"][name] for name in asked}}
