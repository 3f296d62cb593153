from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Environment, TemplateError

from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.score.rerank import (
    Reranker,
    Reranking,
    answer_body,
    read_request,
    rerank_prompts,
)

TEMPLATE = "{{ instruct | default('none') }}|{{ messages[0].content }}|{{ messages[1].content }}"
BODY = {"query": "q", "documents": ["a", "b", "c"]}


def prompts(template: str, query: str, documents: list[str], instruct: str | None) -> list[str]:
    return rerank_prompts(Environment().from_string(template), query, documents, instruct)


@given(query=st.text(), documents=st.lists(st.text()), instruct=st.text(min_size=1))
def test_one_prompt_a_document_in_order(query: str, documents: list[str], instruct: str) -> None:
    wanted = [f"{instruct}|{query}|{document}" for document in documents]
    assert prompts(TEMPLATE, query, documents, instruct) == wanted


@pytest.mark.parametrize("instruct", [None, ""])
def test_without_an_instruction_the_templates_default_holds(instruct: str | None) -> None:
    assert prompts(TEMPLATE, "q", ["a"], instruct) == ["none|q|a"]


def test_both_messages_are_the_users() -> None:
    roles = "{{ messages | map(attribute='role') | join(' ') }}"
    assert prompts(roles, "q", ["a"], None) == ["user user"]


def test_text_that_looks_like_a_template_is_only_text() -> None:
    assert prompts(TEMPLATE, "{{ 1 + 1 }}", ["{% raw %}"], None) == ["none|{{ 1 + 1 }}|{% raw %}"]


def test_errors_of_the_template_are_raised() -> None:
    with pytest.raises(TemplateError):
        prompts("{{ missing.attribute }}", "q", ["a"], None)


def test_the_template_sees_nothing_else() -> None:
    seen: list[dict[str, Any]] = []

    class Recorder:
        def render(self, **variables: Any) -> str:
            seen.append(variables)
            return ""

    rerank_prompts(Recorder(), "q", ["a"], "why")
    rerank_prompts(Recorder(), "q", ["a"], None)
    assert [set(variables) for variables in seen] == [{"messages", "instruct"}, {"messages"}]


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


@pytest.mark.parametrize("template", ["{{ missing.field.of }}", "{% if %}"])
def test_wrong_templates_are_left_to_sglang(template: str) -> None:
    wanted = read_request(json.dumps(BODY).encode())
    assert wanted is not None
    with pytest.raises(StockPathTaken):
        Reranker(Reranking(template, 1, 2)).call(wanted, PrefillOnlyConfig(), None)
