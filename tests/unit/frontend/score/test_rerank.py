from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Environment, TemplateError

from sglang_prefill_ext.frontend.score.rerank import rerank_prompts

TEMPLATE = "{{ instruct | default('none') }}|{{ messages[0].content }}|{{ messages[1].content }}"


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
