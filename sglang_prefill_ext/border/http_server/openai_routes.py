"""The fast versions of SGLang's OpenAI routes for scores, documents to rank, and vectors.

Each reads a plain body and answers it. For any other body it returns the body that SGLang's own
route is to serve.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

from fastapi import HTTPException
from starlette.responses import Response

from sglang_prefill_ext.border.http_server.fast_route import error_response
from sglang_prefill_ext.border.tokenizer_manager.call_context import CallContext, counted
from sglang_prefill_ext.border.tokenizer_manager.embed_hooks import packed_vectors
from sglang_prefill_ext.border.tokenizer_manager.score_hooks import packed_scores
from sglang_prefill_ext.border.tokenizer_manager.server import PrefillServer
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.embed import embeddings_api
from sglang_prefill_ext.frontend.embed.embed_frontend import EmbedFrontend
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.options import JSON, READS_ARRAYS
from sglang_prefill_ext.frontend.score import rerank, score_body
from sglang_prefill_ext.frontend.score.body_forms import BodyOverrides
from sglang_prefill_ext.frontend.score.rerank import Reranker

_Stock: TypeAlias = Callable[[PrefillOnlyConfig], tuple[bytes, BodyOverrides | None]]
_StockOf: TypeAlias = Callable[[bytes, PrefillOnlyConfig], tuple[bytes, BodyOverrides | None]]


async def serve_score(server: PrefillServer, body: bytes, context: CallContext) -> Response | bytes:
    """Answer as `OpenAIServingScore` does."""

    async def answer() -> bytes | None:
        call = read.call(context.request)
        if call is None or _has_to_be_seen(server):
            return None
        scored = await packed_scores(server, call, context)
        write = partial(score_body.answer_body, scored, model=read.model)
        return await _written(server, context, scored.rows.num_values, write)

    read = score_body.ScoreBody.of(body)
    return await _answered(server, context, "openai_serving_score", answer(), read.stock)


async def serve_vectors(
    server: PrefillServer, frontend: EmbedFrontend, body: bytes, context: CallContext
) -> Response | bytes:
    """Answer as `OpenAIServingEmbedding` does."""

    async def answer() -> bytes | None:
        read = None if frontend.makes_numbers else embeddings_api.read_request(body)
        if read is None or _has_to_be_seen(server):
            return None
        embedded, _ = await packed_vectors(server, frontend, read.call, context)
        model = server.manager.model_path
        write = partial(embeddings_api.answer_body, embedded, as_base64=read.as_base64, model=model)
        return await _written(server, context, embedded.numbers, write)

    name = "openai_serving_embedding"
    return await _answered(server, context, name, answer(), _unchanged(body))


async def serve_rerank(
    server: PrefillServer,
    reranker: Callable[[], Reranker | None],
    body: bytes,
    context: CallContext,
) -> Response | bytes:
    """Answer as `OpenAIServingRerank` does for a decoder that is asked for yes or no."""

    async def answer() -> bytes | None:
        asks = reranker()
        wanted = None if asks is None else rerank.read_request(body)
        if asks is None or wanted is None or _has_to_be_seen(server):
            return None
        with counted(server.path.metrics, context):
            call = asks.call(wanted, server.path.config, context.request)
        scored = await packed_scores(server, call, context)
        return rerank.answer_body(wanted, scored.scores)

    return await _answered(server, context, "openai_serving_rerank", answer(), _unchanged(body))


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


def _unchanged(body: bytes) -> _Stock:
    return lambda _config: (body, None)


async def serve_stock(
    server: PrefillServer, read: _StockOf, body: bytes, context: CallContext
) -> Response | bytes:
    return await _answered(server, context, "openai_serving_score", None, partial(read, body))


def _has_to_be_seen(server: PrefillServer) -> bool:
    """Whether SGLang logs bodies, and so has to get each request."""
    logger = server.manager.request_logger
    return bool(logger.log_requests and logger.log_requests_level >= 2)
