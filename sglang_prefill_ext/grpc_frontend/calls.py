"""Serves calls for scores and vectors, packed here or by the engine."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.attach.messages import StockAnswer, StockScore, StockVectors
from sglang_prefill_ext.attach.session import Session
from sglang_prefill_ext.errors import PrefillExtError
from sglang_prefill_ext.frontend.answers import flat_scores
from sglang_prefill_ext.frontend.embed.embed_call import EmbedCall
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.options import RequestOptions
from sglang_prefill_ext.frontend.score.score_call import ScoreCall
from sglang_prefill_ext.grpc_frontend import prefill_pb2 as pb
from sglang_prefill_ext.grpc_frontend.questions import (
    CallOptions,
    prompts_of,
    score_call,
    stock_arguments,
    with_overrides,
)
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.wire.arrays import FlatRows, Int32Array, lens_of_rows, values_to_bytes
from sglang_prefill_ext.wire.checks import check_count, empty_prompt
from sglang_prefill_ext.wire.flat import check_ids
from sglang_prefill_ext.wire.packed import PackedResult, PackedRows
from sglang_prefill_ext.wire.read import WHOLE_VECTOR
from sglang_prefill_ext.wire.status import end_by
from sglang_prefill_ext.wire.stock_reason import StockReason

_DOUBLES = np.dtype("<f8")

_EARLY_MS = 50.0
"""A call counts as late if it is cancelled so shortly before its deadline, as clocks differ."""


async def score(
    session: Session, request: pb.ScoreRequest, options: CallOptions
) -> pb.ScoreResponse:
    """Serve a request.

    Raises:
        PrefillExtError: it is wrong, or ended badly.
    """
    try:
        with counted(session.path.metrics, options.scheduling.deadline_ms):
            call = score_call(request)
            check_count(call.num_items, session.facts.config)
            call = with_overrides(call, request)
            if options.stock:
                raise StockPathTaken(StockReason.OPTED_OUT)
            if not session.facts.is_generation:
                raise StockPathTaken(StockReason.NOT_GENERATION)
            return _response(call, *await session.scoring.ask(call, options.scheduling))
    except StockPathTaken as stock:
        arguments = stock_arguments(stock.call or call)
        own = StockScore(uuid.uuid4().hex, arguments, options.headers())
        return _stock_response(await session.ask(own), stock.reason)


def _stock_response(answer: StockAnswer, reason: StockReason) -> pb.ScoreResponse:
    logprobs = answer.token_logprobs
    return pb.ScoreResponse(
        scores=np.array([x for row in answer.rows for x in row], _DOUBLES).tobytes(),
        counts=lens_of_rows(answer.rows).tobytes(),
        token_logprobs=np.array([x for row in logprobs or () for x in row], "<f4").tobytes(),
        usage=pb.Usage(prompt_tokens=answer.prompt_tokens, path=pb.PATH_ENGINE, reason=reason),
    )


def _response(call: ScoreCall, rows: PackedRows, answer: PackedResult) -> pb.ScoreResponse:
    values = answer.row_values()
    scores = flat_scores(
        values, rows.read, apply_softmax=call.apply_softmax, temperature=call.temperature
    )
    return pb.ScoreResponse(
        scores=scores.astype(_DOUBLES).tobytes(),
        counts=rows.read.lens_of(0, rows.num_reads).tobytes(),
        token_logprobs=values_to_bytes(values) if call.return_token_logprobs else b"",
        usage=pb.Usage(
            prompt_tokens=rows.num_prompt_tokens,
            computed_tokens=answer.tokens_computed,
            cached_tokens=min(answer.tokens_cached, rows.prefix_len),
            path=pb.PATH_PACKED,
        ),
    )


async def embed(
    session: Session, request: pb.EmbedRequest, options: CallOptions
) -> pb.EmbedResponse:
    """Serve a request; raises as `score` does."""
    found, usage = await _vectors(session, request, options, request.dimensions)
    return pb.EmbedResponse(vectors=found.tobytes(), width=found.shape[1], usage=usage)


async def classify(
    session: Session, request: pb.ClassifyRequest, options: CallOptions
) -> pb.ClassifyResponse:
    """Serve a request; raises as `score` does."""
    found, usage = await _vectors(session, request, options)
    values, width, names = found.tobytes(), found.shape[1], session.facts.class_names
    return pb.ClassifyResponse(values=values, width=width, class_names=names, usage=usage)


async def _vectors(
    session: Session,
    request: pb.EmbedRequest | pb.ClassifyRequest,
    options: CallOptions,
    dimensions: int = 0,
) -> tuple[NDArray[np.float32], pb.Usage]:
    """Return the vectors of prompts, float32 ``[prompts, width]``: embeddings, logits or rewards.

    Args:
        dimensions: leading numbers of each vector; 0 for all.
    """
    try:
        with counted(session.path.metrics, options.scheduling.deadline_ms):
            prompts = prompts_of(request.prompts)
            check_count(len(prompts), session.facts.config, field="prompts", noun="prompts")
            if reason := _unpacked(session, options, dimensions):
                raise StockPathTaken(reason)
            return await _packed(session, prompts, request.adapter, options.scheduling)
    except StockPathTaken as stock:
        left = stock.call or prompts
        plain = left.tolist() if isinstance(left, FlatRows) else left
        rid, headers = uuid.uuid4().hex, options.headers()
        own = StockVectors(rid, plain, dimensions or None, request.adapter, headers)
        answer = await session.ask(own)
        usage = pb.Usage(
            prompt_tokens=answer.prompt_tokens, path=pb.PATH_ENGINE, reason=stock.reason
        )
        return np.array(answer.rows, dtype=np.float32), usage


def _unpacked(session: Session, options: CallOptions, dimensions: int) -> StockReason | None:
    """Why the engine is to serve a call for vectors, whatever its prompts are."""
    if options.stock:
        return StockReason.OPTED_OUT
    if session.facts.is_generation:
        return StockReason.NO_VECTORS
    if dimensions:  # only the engine knows which ones the model allows
        return StockReason.DIMENSIONS
    return session.exchange.declined_reason


async def _packed(
    session: Session, prompts: list[str] | FlatRows, adapter: str, options: RequestOptions
) -> tuple[NDArray[np.float32], pb.Usage]:
    ids = await _token_ids(session, prompts)
    try:
        found = await session.embedding.vectors(ids, WHOLE_VECTOR, options, None, adapter=adapter)
    except StockPathTaken as taken:  # the engine need not encode texts again
        raise StockPathTaken(taken.reason, [each.tolist() for each in ids]) from None
    usage = pb.Usage(prompt_tokens=sum(map(len, ids)), path=pb.PATH_PACKED)
    return np.stack([each.table for each in found]), usage


async def _token_ids(session: Session, prompts: list[str] | FlatRows) -> list[Int32Array]:
    if isinstance(prompts, list):
        call = EmbedCall(prompts, is_single=False, dimensions=None)
        return await session.embedding.encoder.token_ids(call, None)
    if not prompts.counts.all():
        raise empty_prompt("prompts")
    check_ids(prompts.values, session.facts.vocab_size, field="prompts")
    return prompts.rows()


@contextmanager
def counted(metrics: FrontendMetrics, deadline_ms: float | None = None) -> Iterator[None]:
    """Count the error of a packed call inside; or that gRPC cancels it, as its client has left.

    Args:
        deadline_ms: of the client, Unix time in ms; then gRPC cancels the call, too.
    """
    try:
        yield
    except asyncio.CancelledError:
        is_late = deadline_ms is not None and time.time() * 1e3 > deadline_ms - _EARLY_MS
        metrics.count_requests("expired" if is_late else "aborted")
        raise
    except PrefillExtError as error:
        metrics.count_requests(end_by(error).counted)
        raise
