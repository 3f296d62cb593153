"""Hooks in SGLang's front-end processes by which rerankers take the packed path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any

from sglang.srt.entrypoints.openai.protocol import V1RerankReqInput
from sglang.srt.entrypoints.openai.serving_rerank import (
    _detect_rerank_backend,
    _extract_text_from_content,
    _get_jinja_env,
    _qwen3_rerank_score,
)
from sglang.srt.managers.io_struct import GenerateReqInput

from sglang_prefill_ext.border.tokenizer_manager.call_context import call_with, counted
from sglang_prefill_ext.border.tokenizer_manager.server import PrefillServer, server_of
from sglang_prefill_ext.frontend.score.rerank import (
    Reranking,
    check_documents,
    render,
    rerank_prompts,
)

_TOP_LOGPROBS = 50
"""SGLang looks for the answers among so many tokens."""


def reranking_of(app: Any, manager: Any) -> Reranking | None:
    """How SGLang's route asks the model as a decoder reranker; None if it does not ask it so."""
    template = getattr(manager.tokenizer, "chat_template", None)
    if not isinstance(template, str) or not manager.is_generation:
        return None
    request = V1RerankReqInput(query="q", documents=["d"])
    model = str(manager.model_config.model_path)
    backend = _detect_rerank_backend(request=request, chat_template=template, model_path=model)
    if backend != "text_decoder":
        return None
    serving = app.state.openai_serving_rerank
    return Reranking(template, serving._yes_token_id, serving._no_token_id)


async def rerank_texts(
    original: Callable[..., Awaitable[Any]],
    serving: Any,
    request: Any,
    raw_request: Any,
    chat_template: str,
) -> Any:
    """AROUND `OpenAIServingRerank._handle_text_reranker_request`.

    SGLang compiles the template for every document. That blocks the event loop, and takes longer
    than all other work for a packed document. Only this is different here.
    """
    manager = serving.tokenizer_manager
    server = _packing_server(manager, raw_request)
    if server is None:
        return await original(
            serving, request=request, raw_request=raw_request, chat_template=chat_template
        )
    try:
        asked = request.query, request.documents, request.instruct
        _check(server, raw_request, *asked)
        prompts = rerank_prompts(_compiled(chat_template), *asked)
        result = await manager.score_prompts(
            prompts,
            label_token_ids=[serving._yes_token_id, serving._no_token_id],
            request=raw_request,
        )
        scores = [_qwen3_rerank_score(yes, no) for yes, no in result.scores]
    except Exception as error:  # as SGLang does, even for errors in the template
        return serving.create_error_response(str(error))
    return serving._build_rerank_response(scores, request)


async def rerank_contents(
    original: Callable[..., Awaitable[Any]],
    serving: Any,
    request: Any,
    raw_request: Any,
    chat_template: str,
) -> Any:
    """AROUND `OpenAIServingRerank._handle_vl_reranker_request`.

    SGLang asks for the answer to one document after the other, and each time for the log-probs of
    the whole prompt, which it does not read. Here all documents wait together.
    """
    manager = serving.tokenizer_manager
    server = _packing_server(manager, raw_request)
    if server is None:
        return await original(serving, request, raw_request, chat_template)
    try:
        # Before anything is made of them; SGLang's own function, as contents may be in parts.
        query_text = _extract_text_from_content(request.query)
        _check(server, raw_request, query_text, request.documents, request.instruct)
        asked = _asked_of_all(serving, request, chat_template)
        answers = await anext(aiter(manager.generate_request(asked, raw_request)))
        scores = [serving._extract_score_from_logprobs(answer) for answer in answers]
        return serving._build_rerank_response(scores, request)
    except Exception as error:  # as above
        return serving.create_error_response(str(error))


def _check(
    server: PrefillServer, raw_request: Any, query: str, documents: Any, instruct: str | None
) -> None:
    """Refuse a call, which is counted.

    Raises:
        RequestError: there are too many documents, or the query is too long for so many.
    """
    with counted(server.path.metrics, call_with(raw_request)):
        check_documents(query, documents, instruct, server.path.config)


def _asked_of_all(serving: Any, request: Any, chat_template: str) -> GenerateReqInput:
    contents = [
        serving._build_vl_reranker_content(query=request.query, document=document)
        for document in request.documents
    ]
    queries, documents, images, videos = zip(*contents, strict=True)
    template = _compiled(chat_template)
    return GenerateReqInput(
        text=[
            render(template, request.instruct, query=query, document=document)
            for query, document in zip(queries, documents, strict=True)
        ],
        image_data=[*images] if any(images) else None,
        video_data=[*videos] if any(videos) else None,
        sampling_params={"max_new_tokens": 1, "temperature": 0},
        return_logprob=True,
        top_logprobs_num=_TOP_LOGPROBS,
    )


def _packing_server(manager: Any, raw_request: Any) -> PrefillServer | None:
    """The server, if it may pack this request."""
    if not manager.model_config.is_generation or call_with(raw_request).is_opted_out:
        return None
    return server_of(manager)


@lru_cache(maxsize=1)
def _compiled(chat_template: str) -> Any:
    """Compile the server's template in SGLang's sandbox."""
    return _get_jinja_env().from_string(chat_template)
