"""Texts on the running server: cut, encoded by a fast library, with Hugging Face's ids."""

from __future__ import annotations

import pytest

from sglang_prefill_ext.tokenization.texts import splice_cases
from tests.integration.client import Client, Json, wait_until
from tests.integration.reference import Reference

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

LABELS = [5, 60, 700]
CASES = [case for case in splice_cases(["<|im_start|>", "<|endoftext|>"]) if all(case[1])][::8]
"""Shared texts, each with texts that go before and behind it."""


@pytest.fixture(scope="module")
def tokenizer(client: Client) -> Json:
    """How texts are encoded, once that is decided."""

    def status() -> Json:
        found: Json = client.status()["frontend"]["tokenizer"]
        return found

    wait_until(lambda: status()["ready"])
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
            assert client.score(text | fields) == client.score(ids | fields)
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
