"""Embedding calls of SGLang's front-end processes take the packed path."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import torch

from sglang_prefill_ext.border.http_server.fast_route import raise_if_taken
from sglang_prefill_ext.border.http_server.http_errors import counted
from sglang_prefill_ext.border.model.capability import encoder_traits, reads_places
from sglang_prefill_ext.border.tokenizer_manager.adapter_lease import acquired_adapter
from sglang_prefill_ext.border.tokenizer_manager.call_records import CallRecord, records_of
from sglang_prefill_ext.border.tokenizer_manager.frontend_link import (
    TokenizerManagerLink,
    embedding_kind,
    embedding_rows,
)
from sglang_prefill_ext.border.tokenizer_manager.override_hooks import vector_arrays
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.embed.embed_call import EmbedCall
from sglang_prefill_ext.frontend.embed.embed_frontend import Embedded, EmbedFrontend
from sglang_prefill_ext.frontend.exchange import StockPathTaken, headers_unless_opted_out
from sglang_prefill_ext.frontend.options import options_of
from sglang_prefill_ext.frontend.score.score_frontend import ScoreFrontend

_ATTRIBUTE = "_prefill_only_embedding"

# What SGLang says of every embedding request that ran to its end.
_FINISHED = {"type": "length", "length": 0}


def attach(manager: Any, link: TokenizerManagerLink, scoring: ScoreFrontend) -> EmbedFrontend:
    """Let embedding calls of a manager take the packed path, beside its scoring calls."""
    encoder = encoder_traits(manager.model_config)
    frontend = EmbedFrontend(
        link,
        scoring.exchange,
        scoring.config,
        scoring.metrics,
        vocab_size=embedding_rows(manager),
        embeddings=embedding_kind(manager),
        has_tokenizer=manager.tokenizer is not None,
        prefixes=scoring.prefixes if encoder is None else None,
        reads_places=reads_places(manager.model_config.hf_config.architectures or []),
        encoder=encoder,
    )
    setattr(manager, _ATTRIBUTE, frontend)
    return frontend


async def packed_vectors(
    manager: Any, call: EmbedCall, request: Any, frontend: EmbedFrontend
) -> tuple[Embedded, CallRecord]:
    """Serve a call on the packed path; return its record, too.

    Raises:
        StockPathTaken: SGLang is to serve it.
        RequestError, UnicodeError: the request is wrong (HTTP 400).
        PrefillExtError: one of `HTTP_ANSWERED`, which is an `HTTPException` as well.
    """
    with counted(frontend.metrics, request):
        if request is not None:  # the calls of an offline engine are its owner's
            frontend.check_limits(len(call.prompts), field="input")
        headers = headers_unless_opted_out(request)
        keeping = records_of(manager).keeping(request, len(call.prompts), call.contents)
        with keeping as record:
            _check_dimensions(manager, call)
            options = options_of(headers, now_ms=time.time() * 1e3)
            embedded = await frontend.embed(call, options, request)
            record.served = embedded.served
    return embedded, record


def _check_dimensions(manager: Any, call: EmbedCall) -> None:
    """Raises: RequestError: the model makes no vectors of so many dimensions."""
    try:
        manager._validate_for_matryoshka_dim(call)
    except ValueError as error:
        raise RequestError(str(error)) from error


async def embed(
    original: Callable[..., AsyncIterator[Any]], manager: Any, obj: Any, request: Any
) -> AsyncIterator[Any]:
    """Yield the one answer of a packed call, or whatever stock yields.

    Raises:
        ValueError, PrefillExtError: see `packed_vectors`.
    """
    frontend: EmbedFrontend = getattr(manager, _ATTRIBUTE)
    try:
        call = vector_arrays(frontend.call_of(obj))
        obj.normalize_batch_and_arguments()
        raise_if_taken(request)
        async with acquired_adapter(manager, obj) as adapter:
            call = replace(call, adapter=adapter)
            embedded, record = await packed_vectors(manager, call, request, frontend)
    except StockPathTaken as stock:
        frontend.metrics.record_fallback(stock.reason)
        _put_ids(manager, obj, stock.call)
        async for answer in original(manager, obj, request):
            yield answer
        return
    yield _answer(manager, obj, call, embedded, record)


def _put_ids(manager: Any, obj: Any, call: EmbedCall | None) -> None:
    """Put ids in the place of texts that were encoded, so that SGLang does not encode them again.

    EmbeddingGemma's texts are left: SGLang ends them with a token more.
    """
    if call is not None and not manager.model_config.is_embedding_gemma:
        obj.text = None
        obj.input_ids = call.prompts[0] if call.is_single else call.prompts


def _answer(manager: Any, obj: Any, call: EmbedCall, embedded: Embedded, record: CallRecord) -> Any:
    """The answer as SGLang builds it, a list for a list of prompts."""
    weight_version = manager.config_value("weight_version")
    rids = [obj.rid] if call.is_single else obj.rid
    lens = embedded.served.prompt_tokens.tolist()
    times = record.times.convert_to_output_meta_info() if manager.enable_metrics else {}
    answers = [
        {
            "embedding": vector,
            "meta_info": {
                "id": rid,
                "finish_reason": _FINISHED,
                "prompt_tokens": tokens,
                "weight_version": weight_version,
                "num_retractions": 0,
                "e2e_latency": record.times.get_e2e_latency(),
                "response_sent_to_client_ts": time.time(),
                **times,
            },
        }
        for rid, vector, tokens in zip(rids, embedded.vectors, lens, strict=True)
    ]
    if embedded.states is not None:
        dtype = manager.model_config.dtype
        for answer, state in zip(answers, embedded.states, strict=True):
            answer["pooled_hidden_state"] = torch.from_numpy(state.copy()).to(dtype)
    return answers[0] if call.is_single else answers
