from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_prefill_ext.border.http_server import rerank_hooks
from sglang_prefill_ext.border.http_server.rerank_hooks import rerank_contents, rerank_texts
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.metrics import FrontendMetrics

TEMPLATE = "{{ instruct | default('none') }}|{{ messages[0].content }}|{{ messages[1].content }}"
REQUEST = SimpleNamespace(query="q", documents=["a", "b"], instruct=None)
PLAIN: Any = SimpleNamespace(headers={})


def packing(config: PrefillOnlyConfig) -> Any:
    """Takes the place of the `PrefillServer`."""
    return SimpleNamespace(path=SimpleNamespace(config=config, metrics=FrontendMetrics()))


class StubServing:
    """Takes the place of `OpenAIServingRerank` and of its tokenizer manager."""

    _yes_token_id = 7
    _no_token_id = 8

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.tokenizer_manager = SimpleNamespace(
            _prefill_only=packing(PrefillOnlyConfig()),
            model_config=SimpleNamespace(is_generation=True),
            score_prompts=self.score_prompts,
        )

    async def score_prompts(self, prompts: list[str], **_options: Any) -> Any:
        self.asked.append(prompts)
        return SimpleNamespace(scores=[[0.3, 0.1], [0.0, 0.0]])

    def create_error_response(self, message: str) -> str:
        return f"error: {message}"

    def _build_rerank_response(self, scores: list[float], request: Any) -> Any:
        return scores, request


async def answer(serving: StubServing, template: str) -> Any:
    async def stock(*_: Any, **__: Any) -> Any:
        raise AssertionError("SGLang compiles the template for every document")

    return await rerank_texts(
        stock, serving, request=REQUEST, raw_request=PLAIN, chat_template=template
    )


async def test_errors_of_the_template_are_answered() -> None:
    serving = StubServing()
    assert await answer(serving, template="{{ missing.attribute }}") == (
        "error: 'missing' is undefined"
    )
    assert serving.asked == []


async def test_a_template_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    make = rerank_hooks._get_jinja_env
    monkeypatch.setattr(rerank_hooks, "_get_jinja_env", lambda: made.append(1) or make())
    for template in (TEMPLATE + "!", TEMPLATE + "!", TEMPLATE + "?"):
        await answer(StubServing(), template=template)
    assert len(made) == 2


async def answer_contents(
    serving: Any, documents: list[Any], template: str, config: PrefillOnlyConfig
) -> Any:
    serving.tokenizer_manager._prefill_only = packing(config)
    serving._build_vl_reranker_content = lambda query, document: (
        [{"type": "text", "text": query}],
        [{"type": "text", "text": document}],
        [],
        [],
    )
    request = SimpleNamespace(query="q", documents=documents, instruct=None)
    return await rerank_contents(_never, serving, request, PLAIN, template)


async def _never(*_: Any, **__: Any) -> Any:
    raise AssertionError("SGLang asks for one document after the other")


@pytest.mark.parametrize(
    ("documents", "template", "error", "refused"),
    [
        (["a"], "{{ missing.attribute }}", "error: 'missing' is undefined", 0),
        (["a"] * 3, "{{ query }}", "error: documents: 3 documents exceed the limit of 2.", 1),
    ],
)
async def test_wrong_calls_of_a_reranker_that_reads_images_are_answered(
    documents: list[str], template: str, error: str, refused: int
) -> None:
    serving: Any = StubServing()
    found = await answer_contents(serving, documents, template, PrefillOnlyConfig(max_items=2))
    assert found.startswith(error)
    counters = serving.tokenizer_manager._prefill_only.path.metrics.as_dict()
    assert counters["requests"].get("refused", 0) == refused


@pytest.mark.parametrize("without", ["packing", "generation", "consent"])
async def test_sglang_answers_where_nothing_is_packed(without: str) -> None:
    serving: Any = StubServing()
    if without == "packing":
        serving.tokenizer_manager._prefill_only = None
    serving.tokenizer_manager.model_config.is_generation = without != "generation"
    headers = {"x-prefill-only": "off"} if without == "consent" else {}
    raw_request = SimpleNamespace(headers=headers)

    async def stock(*arguments: Any) -> Any:
        return arguments

    found = await rerank_contents(stock, serving, REQUEST, raw_request, TEMPLATE)
    assert found == (serving, REQUEST, raw_request, TEMPLATE)
