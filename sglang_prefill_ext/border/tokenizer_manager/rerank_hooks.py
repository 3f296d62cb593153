"""Hook in SGLang's `/v1/rerank`: the prompts of all documents by one compiled template."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any

from sglang.srt.entrypoints.openai.serving_rerank import (
    _get_jinja_env,
    _qwen3_rerank_score,
)

from sglang_prefill_ext.border.activation import config_of
from sglang_prefill_ext.frontend.options import headers_of, opted_out
from sglang_prefill_ext.frontend.score.rerank import rerank_prompts
from sglang_prefill_ext.wire.sizes import check_count, check_repeated


async def rerank_texts(
    original: Callable[..., Awaitable[Any]],
    serving: Any,
    request: Any,
    raw_request: Any,
    chat_template: str,
) -> Any:
    """AROUND `OpenAIServingRerank._handle_text_reranker_request`.

    SGLang compiles the template for every document, which takes longer than all the rest of a
    packed document and holds the event loop up. Nothing else is different here.
    """
    manager = serving.tokenizer_manager
    config = config_of(manager.server_args)
    if (
        config is None
        or not manager.model_config.is_generation
        or opted_out(headers_of(raw_request))
    ):
        return await original(
            serving, request=request, raw_request=raw_request, chat_template=chat_template
        )
    try:
        check_count(len(request.documents), config, field="documents", noun="documents")
        check_repeated(f"{request.query}{request.instruct or ''}", request.documents)
        template = _compiled(chat_template)
        prompts = rerank_prompts(template, request.query, request.documents, request.instruct)
        result = await manager.score_prompts(
            prompts,
            label_token_ids=[serving._yes_token_id, serving._no_token_id],
            request=raw_request,
        )
        scores = [_qwen3_rerank_score(yes, no) for yes, no in result.scores]
    except Exception as error:  # as SGLang does, also of errors in the template
        return serving.create_error_response(str(error))
    return serving._build_rerank_response(scores, request)


@lru_cache(maxsize=1)
def _compiled(chat_template: str) -> Any:
    """The template, which is the server's, compiled in SGLang's sandbox."""
    return _get_jinja_env().from_string(chat_template)
