"""Calls for vectors: packed here, or handed to the engine as calls."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sglang_prefill_ext.attach.session import Session
from sglang_prefill_ext.frontend.embed.embed_call import EmbedCall
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.grpc_frontend import prefill_pb2 as pb
from sglang_prefill_ext.grpc_frontend.outcomes import counted
from sglang_prefill_ext.grpc_frontend.questions import CallOptions, VectorQuestion
from sglang_prefill_ext.wire.arrays import Int32Array
from sglang_prefill_ext.wire.checks import check_prompt
from sglang_prefill_ext.wire.flat import FlatRows, check_ids
from sglang_prefill_ext.wire.read import WHOLE_VECTOR
from sglang_prefill_ext.wire.stock_reason import StockReason


async def vectors(
    session: Session, question: VectorQuestion, options: CallOptions
) -> tuple[NDArray[np.float32], pb.Usage]:
    """Return the vectors of prompts, float32 ``[prompts, width]``: embeddings, logits or rewards.

    Raises:
        PrefillExtError: the call is wrong, or ended badly.
    """
    prompts = question.prompts
    try:
        with counted(session.path.metrics):
            session.embedding.check_limits(len(prompts), field="prompts")
            return await _packed(session, question, options)
    except StockPathTaken as stock:
        left = stock.call or prompts
        plain = left.tolist() if isinstance(left, FlatRows) else left
        dimensions = question.dimensions or None
        headers = options.headers()
        answer = await session.stock_vectors(plain, dimensions, question.adapter, headers)
        usage = pb.Usage(
            prompt_tokens=answer.prompt_tokens, path=pb.PATH_ENGINE, reason=stock.reason
        )
        return np.array(answer.rows, dtype=np.float32), usage


async def _packed(
    session: Session, question: VectorQuestion, options: CallOptions
) -> tuple[NDArray[np.float32], pb.Usage]:
    if options.stock:
        raise StockPathTaken(StockReason.OPTED_OUT)
    if session.facts.is_generation:
        raise StockPathTaken(StockReason.NO_VECTORS)
    if question.dimensions:  # which ones a model allows is the engine's knowledge
        raise StockPathTaken(StockReason.DIMENSIONS)
    if reason := session.exchange.declined_reason:
        raise StockPathTaken(reason)
    ids = await _token_ids(session, question.prompts)
    try:
        found = await session.embedding.vectors(
            ids, WHOLE_VECTOR, options.scheduling, None, adapter=question.adapter
        )
    except StockPathTaken as taken:  # the engine need not encode texts again
        raise StockPathTaken(taken.reason, [each.tolist() for each in ids]) from None
    usage = pb.Usage(prompt_tokens=sum(map(len, ids)), path=pb.PATH_PACKED)
    return np.stack([each.table for each in found]), usage


async def _token_ids(session: Session, prompts: list[str] | FlatRows) -> list[Int32Array]:
    if isinstance(prompts, list):
        call = EmbedCall(prompts, is_single=False, dimensions=None)
        return await session.embedding.encoder.token_ids(call, None)
    vocab_size = session.facts.vocab_size
    if not prompts.counts.all():
        check_prompt([], vocab_size, field="prompts")
    check_ids(prompts.values, vocab_size, field="prompts")
    return prompts.rows()
