"""The fast versions of SGLang's routes for scores, vectors and generation.

Each reads a plain body and answers it. For any other body it returns the body that SGLang's own
route is to serve.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

from fastapi import HTTPException
from sglang.srt.entrypoints.openai.protocol import UsageInfo
from sglang.srt.managers.io_struct import GenerateReqInput
from starlette.responses import Response

from sglang_prefill_ext.border.http_server.fast_route import (
    error_response,
    put_first,
    refusal,
    shorten,
)
from sglang_prefill_ext.border.http_server.own_routes import EXPLAIN_PATH, SERVER_MODULE
from sglang_prefill_ext.border.tokenizer_manager.call_context import CallContext, counted
from sglang_prefill_ext.border.tokenizer_manager.direct_generate import DirectGenerate
from sglang_prefill_ext.border.tokenizer_manager.embed_hooks import packed_vectors
from sglang_prefill_ext.border.tokenizer_manager.server import PrefillServer
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.answers import Scored
from sglang_prefill_ext.frontend.embed import embeddings_api
from sglang_prefill_ext.frontend.embed.embed_frontend import EmbedFrontend
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.options import JSON, READS_ARRAYS
from sglang_prefill_ext.frontend.score import score_body
from sglang_prefill_ext.frontend.score.body_forms import BodyOverrides
from sglang_prefill_ext.frontend.score.score_call import ScoreCall
from sglang_prefill_ext.frontend.token import generate_api

_Stock: TypeAlias = Callable[[PrefillOnlyConfig], tuple[bytes, BodyOverrides | None]]
_StockOf: TypeAlias = Callable[[bytes, PrefillOnlyConfig], tuple[bytes, BodyOverrides | None]]

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

_USAGE = UsageInfo().model_dump()


def shorten_routes(app: Any, server: PrefillServer) -> None:
    """Serve plain requests without SGLang's objects for them, and take arrays as base64."""
    stock_score = partial(_stock, server, score_body.stock_score_body)
    stock_decisions = partial(_stock, server, score_body.stock_decision_body)
    score = partial(_score, server) if server.manager.is_generation else stock_score
    shorten(app, "/v1/score", score, READS_ARRAYS)
    shorten(app, EXPLAIN_PATH, stock_score, READS_ARRAYS)
    shorten(app, "/v1/decisions", stock_decisions, READS_ARRAYS)
    if server.embed is not None:
        shorten(app, "/v1/embeddings", partial(_embed, server, server.embed))
        for path in ("/encode", "/classify"):  # only so that errors keep their headers
            shorten(app, path, _as_it_is)
    ollama = [each.path for each in app.routes if getattr(each, "name", "") in _OLLAMA_ROUTES]
    if server.tokens is not None:
        shorten(app, "/generate", partial(_generate, DirectGenerate(server, server.tokens)))
        for path in ollama:
            shorten(app, path, partial(_with_right_headers, server))
    put_first(app, [*_OFTEN, *ollama])


async def _score(server: PrefillServer, body: bytes, context: CallContext) -> Response | bytes:
    """Answer as `OpenAIServingScore` does."""

    async def answer() -> bytes | None:
        call = read.call(context.request)
        if call is None or _has_to_be_seen(server):
            return None
        scored = await packed_scores(server, call, context)
        tokens = scored.prompt_tokens
        usage = _USAGE | {"prompt_tokens": tokens, "total_tokens": tokens}
        write = partial(score_body.answer_body, scored, model=read.model, usage=usage)
        return await _written(server, context, scored.rows.num_values, write)

    read = score_body.ScoreBody.of(body)
    return await _answered(server, context, "openai_serving_score", answer(), read.stock)


async def packed_scores(server: PrefillServer, call: ScoreCall, context: CallContext) -> Scored:
    """Serve a call on the packed path.

    Raises:
        StockPathTaken: SGLang is to serve it.
        Exception: see `counted`.
    """
    with counted(server.path.metrics, context):
        server.score.check_limits(call)  # before items are processed, even for a record
        with server.records.keeping(call.request, call.num_items, call.contents) as record:
            context.raise_if_opted_out()
            scored = await server.score.score(call, context.options())
            record.served = scored.served
    return scored


async def _embed(
    server: PrefillServer, frontend: EmbedFrontend, body: bytes, context: CallContext
) -> Response | bytes:
    """Answer as `OpenAIServingEmbedding` does."""

    async def answer() -> bytes | None:
        read = None if frontend.makes_numbers else embeddings_api.read_request(body)
        if read is None or _has_to_be_seen(server):
            return None
        embedded, _ = await packed_vectors(server, frontend, read.call, context)
        tokens = int(embedded.served.prompt_tokens.sum())
        write = partial(
            embeddings_api.answer_body,
            embedded.vectors,
            as_base64=read.as_base64,
            model=server.manager.model_path,
            usage=_USAGE | {"prompt_tokens": tokens, "total_tokens": tokens},
        )
        return await _written(server, context, embedded.numbers, write)

    name = "openai_serving_embedding"
    return await _answered(server, context, name, answer(), lambda _: (body, None))


async def _written(
    server: PrefillServer, context: CallContext, numbers: int, write: Callable[[], bytes]
) -> bytes:
    """Write the body of an answer with so many numbers; HTTP 429 if too many large ones wait."""
    with counted(server.path.metrics, context):
        return await server.path.answers.run_if_large(numbers, write)


async def _answered(
    server: PrefillServer,
    context: CallContext,
    serving: str,
    answer: Awaitable[bytes | None] | None,
    stock: _Stock,
) -> Response | bytes:
    """Return an answer like that of SGLang's OpenAI route, or the body for that route to serve.

    Args:
        serving: name of the route's own handler in the application's state; errors look like its.
        answer: gives the body of the answer. If it gives None or raises `StockPathTaken`, the route
            serves the request; our hook behind the route then counts the reason. None for a route
            that serves all requests; hooks behind it may pack them.
        stock: returns the body that SGLang can read, without base64 arrays, which its schema lacks.
    """
    try:
        try:
            content = None if answer is None else await answer
        except StockPathTaken as taken:
            context.taken, content = taken, None
        if content is None:
            with counted(server.path.metrics, context):
                stock_body, context.overrides = stock(server.path.config)
            return stock_body
    except (HTTPException, RequestError, UnicodeError) as error:
        handler = getattr(context.request.app.state, serving)
        response: Response = error_response(handler, error)
        response.headers.update(READS_ARRAYS)
        return response
    return Response(content, 200, READS_ARRAYS, JSON)


async def _as_it_is(body: bytes, _context: CallContext) -> bytes:
    return body


async def _with_right_headers(
    server: PrefillServer, body: bytes, context: CallContext
) -> Response | bytes:
    """Refuse wrong headers here, as the route would answer HTTP 500."""
    try:
        with counted(server.path.metrics, context):
            context.options()
    except RequestError as error:
        return refusal(error)
    return body


async def _stock(
    server: PrefillServer, read: _StockOf, body: bytes, context: CallContext
) -> Response | bytes:
    return await _answered(server, context, "openai_serving_score", None, partial(read, body))


def _has_to_be_seen(server: PrefillServer) -> bool:
    """Whether SGLang logs bodies, and so has to get each request."""
    logger = server.manager.request_logger
    return bool(logger.log_requests and logger.log_requests_level >= 2)


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
