"""``POST /v1/embeddings`` on the shorter way through the HTTP application."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import HTTPException
from sglang.srt.entrypoints.openai.protocol import UsageInfo
from starlette.requests import Request
from starlette.responses import Response

from sglang_prefill_ext.compat.embed_hooks import packed_vectors
from sglang_prefill_ext.compat.fast_route import shorten
from sglang_prefill_ext.compat.http_errors import error_response
from sglang_prefill_ext.frontend.embed_frontend import EmbedFrontend
from sglang_prefill_ext.frontend.embeddings_api import answer_body, read_request
from sglang_prefill_ext.frontend.exchange import StockPathTaken

_PATH = "/v1/embeddings"


def shorten_embeddings(app: Any, manager: Any, frontend: EmbedFrontend) -> None:
    """Serve plain requests of the route without SGLang's objects for them."""
    shorten(app, _PATH, partial(_serve, manager, frontend))


async def _serve(
    manager: Any, frontend: EmbedFrontend, body: bytes, request: Request
) -> Response | bytes:
    """Answer as `OpenAIServingEmbedding` does; the body for what it is to answer itself."""
    wanted = None if manager.request_logger.log_requests else read_request(body)
    if wanted is None:
        return body
    try:
        embedded = await packed_vectors(manager, wanted.call, request, frontend)
    except StockPathTaken:
        return body  # which counts it
    except (HTTPException, ValueError) as error:
        response: Response = error_response(request.app.state.openai_serving_embedding, error)
        return response
    tokens = sum(embedded.prompt_tokens)
    content = answer_body(
        embedded.vectors,
        as_base64=wanted.as_base64,
        model=manager.model_path,
        usage=UsageInfo(prompt_tokens=tokens, total_tokens=tokens).model_dump(),
    )
    return Response(content, media_type="application/json")
