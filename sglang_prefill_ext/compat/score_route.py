"""``POST /v1/score`` on the shorter way through the HTTP application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

from fastapi import HTTPException
from sglang.srt.entrypoints.openai.protocol import UsageInfo
from starlette.requests import Request
from starlette.responses import Response

from sglang_prefill_ext.compat.fast_route import shorten
from sglang_prefill_ext.compat.http_errors import error_response
from sglang_prefill_ext.frontend.call import ScoreCall
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.score_api import answer_body, read_request
from sglang_prefill_ext.frontend.score_frontend import Scored

_PATH = "/v1/score"

PackedScores: TypeAlias = Callable[[ScoreCall], Awaitable[Scored]]
"""Serves a call on the packed path, or raises `StockPathTaken`, a `ValueError` or an
`HTTPException`."""


def shorten_scores(app: Any, manager: Any, packed_scores: PackedScores) -> None:
    """Serve plain requests of the route without SGLang's objects for them."""
    shorten(app, _PATH, partial(_serve, manager, packed_scores))


async def _serve(
    manager: Any, packed_scores: PackedScores, body: bytes, request: Request
) -> Response | bytes:
    """Answer as `OpenAIServingScore` does; the body for what it is to answer itself."""
    wanted = None if manager.request_logger.log_requests else read_request(body, request)
    if wanted is None:
        return body
    call, model = wanted
    try:
        scored = await packed_scores(call)
    except StockPathTaken:
        return body  # which counts it
    except (HTTPException, ValueError) as error:
        response: Response = error_response(request.app.state.openai_serving_score, error)
        return response
    usage = UsageInfo(prompt_tokens=scored.prompt_tokens, total_tokens=scored.prompt_tokens)
    content = answer_body(scored, model=model, usage=usage.model_dump())
    return Response(content, media_type="application/json")
