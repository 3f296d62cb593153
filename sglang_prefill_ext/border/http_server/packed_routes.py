"""Puts fast routes in the place of SGLang's routes whose requests are packed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from sglang.srt.managers.io_struct import GenerateReqInput
from starlette.responses import Response

from sglang_prefill_ext.border.http_server.fast_route import put_first, refusal, shorten
from sglang_prefill_ext.border.http_server.openai_routes import (
    serve_rerank,
    serve_score,
    serve_stock,
    serve_vectors,
)
from sglang_prefill_ext.border.http_server.own_routes import EXPLAIN_PATH, SERVER_MODULE
from sglang_prefill_ext.border.http_server.rerank_hooks import reranking_of
from sglang_prefill_ext.border.tokenizer_manager.call_context import CallContext, counted
from sglang_prefill_ext.border.tokenizer_manager.direct_generate import DirectGenerate
from sglang_prefill_ext.border.tokenizer_manager.server import PrefillServer
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.options import JSON, READS_ARRAYS
from sglang_prefill_ext.frontend.score import score_body
from sglang_prefill_ext.frontend.score.rerank import Reranker
from sglang_prefill_ext.frontend.token import generate_api

_OFTEN = (
    "/v1/score",
    "/generate",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/decisions",
    "/v1/classify",
    "/classify",
    "/encode",
)
"""Paths of packed calls, those with the smallest requests first."""

_OLLAMA_ROUTES = ("ollama_chat", "ollama_generate")
"""Names of the routes, whose paths an operator may change."""


def shorten_routes(app: Any, server: PrefillServer) -> None:
    """Serve plain requests without SGLang's objects for them, and take arrays as base64."""
    stock_score = partial(serve_stock, server, score_body.stock_score_body)
    stock_decisions = partial(serve_stock, server, score_body.stock_decision_body)
    generates = server.manager.is_generation
    score = partial(serve_score, server) if generates else stock_score
    shorten(app, "/v1/score", score, READS_ARRAYS)
    shorten(app, EXPLAIN_PATH, stock_score, READS_ARRAYS)
    shorten(app, "/v1/decisions", stock_decisions, READS_ARRAYS)
    if generates:
        reranker = _reranker_of(app, server.manager)
        shorten(app, "/v1/rerank", partial(serve_rerank, server, reranker))
    if server.embed is not None:
        shorten(app, "/v1/embeddings", partial(serve_vectors, server, server.embed))
        for path in ("/encode", "/classify"):  # only so that errors keep their headers
            shorten(app, path, _as_it_is)
    ollama = [each.path for each in app.routes if getattr(each, "name", "") in _OLLAMA_ROUTES]
    if server.tokens is not None:
        shorten(app, "/generate", partial(_generate, DirectGenerate(server, server.tokens)))
        for path in ollama:
            shorten(app, path, partial(_with_right_headers, server))
    put_first(app, [*_OFTEN, *ollama])


def _reranker_of(app: Any, manager: Any) -> Callable[[], Reranker | None]:
    """Return what gives the decoder reranker; its template is there from the first request on."""

    @cache
    def reranker() -> Reranker | None:
        reranking = reranking_of(app, manager)
        return None if reranking is None else Reranker(reranking)

    return reranker


async def _as_it_is(body: bytes, _context: CallContext) -> bytes:
    return body


async def _with_right_headers(
    server: PrefillServer, body: bytes, context: CallContext
) -> Response | bytes:
    """Refuse wrong headers here, as the route would answer HTTP 500."""
    try:
        with counted(server.path.metrics, context):
            context.options(server.path.config)
    except RequestError as error:
        return refusal(error)
    return body


async def _generate(direct: DirectGenerate, body: bytes, context: CallContext) -> Response | bytes:
    """Answer as SGLang does; return the body if SGLang is to read it."""
    read = generate_api.read_request(body)
    if read is None:
        return body
    content = await direct.answer(read, context)
    if content is not None:
        return Response(content, media_type=JSON)
    server: Any = sys.modules[SERVER_MODULE]
    obj = GenerateReqInput(**read.arguments())
    response: Response = await server.serve_generate_request(obj, context.request)
    return response
