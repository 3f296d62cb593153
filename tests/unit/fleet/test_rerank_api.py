from __future__ import annotations

import json

import pytest

from sglang_prefill_ext.attach.carrier import Reranking
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.fleet.classify_api import read_openai
from sglang_prefill_ext.fleet.rerank_api import Reranker, answer_body, read_request
from sglang_prefill_ext.frontend.exchange import StockPathTaken

BODY = {"query": "q", "documents": ["a", "b", "c"]}


def read(**fields: object) -> object:
    return read_request(json.dumps(BODY | fields).encode())


@pytest.mark.parametrize(
    "fields",
    [
        {"query": " "},
        {"documents": []},
        {"documents": ["a", ""]},
        {"documents": "a"},
        {"documents": ["a", [{"type": "text", "text": "b"}]]},
        {"top_n": 0},
        {"top_n": "3"},
        {"return_documents": None},
    ],
    ids=str,
)
def test_what_is_not_plain_is_left_to_sglang(fields: dict[str, object]) -> None:
    assert read(**fields) is None


def test_a_body_too_deep_to_read_is_left_to_sglang() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert read_request(b'{"query": "q", "documents": ["a"], "ignored": %s}' % deep) is None
    assert read_openai(b'{"input": "a", "ignored": %s}' % deep) is None


def test_the_best_documents_come_first() -> None:
    wanted = read_request(json.dumps(BODY | {"model": "ignored"}).encode())
    assert wanted is not None
    found = json.loads(answer_body(wanted, [(0.1, 0.3), (0.0, 0.0), (0.2, 0.2)]))
    assert [each["index"] for each in found] == [2, 0, 1]
    assert found[0] == {"score": 0.5, "document": "c", "index": 2, "meta_info": None}
    wanted = read_request(json.dumps(BODY | {"top_n": 1, "return_documents": False}).encode())
    assert wanted is not None
    found = json.loads(answer_body(wanted, [(0.1, 0.3), (0.0, 0.0), (0.2, 0.2)]))
    assert found == [{"score": 0.5, "index": 2, "meta_info": None}]


def test_templates_are_filled_in_or_left_to_sglang() -> None:
    wanted = read_request(json.dumps(BODY).encode())
    assert wanted is not None
    template = "{{ messages[0].content }}/{{ messages[1].content }}/{{ instruct | default('d') }}"
    reranker = Reranker(Reranking(template, 1, 2))
    call = reranker.call(wanted, PrefillOnlyConfig(), None)
    assert (call.query, call.items) == ("", ["q/a/d", "q/b/d", "q/c/d"])
    assert call.label_token_ids == [1, 2]
    with pytest.raises(RequestError, match="documents"):
        reranker.call(wanted, PrefillOnlyConfig(max_items=2), None)
    with pytest.raises(StockPathTaken):
        Reranker(Reranking("{{ missing.field.of }}", 1, 2)).call(wanted, PrefillOnlyConfig(), None)
