"""Hook in SGLang's tokenizer manager by which calls for vectors take the packed path."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from sglang.srt.managers.io_struct import EmbeddingReqInput

from sglang_prefill_ext.border.model.model_classes import reads_places
from sglang_prefill_ext.border.tokenizer_manager.adapters import adapter_of_request
from sglang_prefill_ext.border.tokenizer_manager.call_context import CallContext, call_with, counted
from sglang_prefill_ext.border.tokenizer_manager.call_records import CallRecord
from sglang_prefill_ext.border.tokenizer_manager.embed_request import embed_call_of
from sglang_prefill_ext.border.tokenizer_manager.overrides import vector_arrays
from sglang_prefill_ext.border.tokenizer_manager.server import PrefillServer, server_of
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.answers import native_answers
from sglang_prefill_ext.frontend.embed.embed_call import EmbedCall
from sglang_prefill_ext.frontend.embed.embed_frontend import Embedded, EmbedFrontend
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.explain import explain_stock, explain_vectors
from sglang_prefill_ext.wire.checks import check_count


def generate_request(
    original: Callable[..., AsyncIterator[Any]], manager: Any, obj: Any, request: Any = None
) -> AsyncIterator[Any]:
    """AROUND `TokenizerManager.generate_request`, an asynchronous generator."""
    if (server := server_of(manager)) is not None:
        context = call_with(request)
        if server.embed is not None and isinstance(obj, EmbeddingReqInput):
            return embed(original, server, server.embed, obj, context)
    return original(manager, obj, request)


async def packed_vectors(
    server: PrefillServer,
    frontend: EmbedFrontend,
    call: EmbedCall,
    context: CallContext,
    names: Sequence[str] = (),
    obj: Any = None,
) -> tuple[Embedded, CallRecord]:
    """Serve a call on the packed path; return its record, too.

    Args:
        names: of its prompts, by which it can be aborted.
        obj: SGLang's request, for its adapter and priority; None if it can have neither.

    Raises:
        StockPathTaken: SGLang is to serve it.
        Exception: see `counted`.
    """
    request = context.request
    with counted(server.path.metrics, context):
        if request is not None:  # calls of an offline engine, by the program itself, have no limit
            check_count(len(call.prompts), server.path.config, field="input", noun="prompts")
        context.raise_if_opted_out()
        about = request, len(call.prompts), call.contents, names, getattr(obj, "priority", None)
        with server.records.keeping(*about) as record:
            _check_dimensions(server.manager, call)
            options, exchange = context.options(server.path.config), server.path.exchange
            held = adapter_of_request(server.manager, exchange, obj, options, record)
            async with held as adapter:
                embedded = await frontend.embed(replace(call, adapter=adapter), options, record)
            record.served = embedded.served
    return embedded, record


def _check_dimensions(manager: Any, call: EmbedCall) -> None:
    """Raises: RequestError: the model makes no vectors of so many dimensions."""
    try:
        manager._validate_for_matryoshka_dim(call)
    except ValueError as error:
        raise RequestError(str(error)) from error


async def embed(
    original: Callable[..., AsyncIterator[Any]],
    server: PrefillServer,
    frontend: EmbedFrontend,
    obj: Any,
    context: CallContext,
) -> AsyncIterator[Any]:
    """Yield the one answer of a packed call, or whatever stock yields.

    Raises:
        ValueError, PrefillExtError: see `packed_vectors`.
    """
    manager = server.manager
    try:
        call = vector_arrays(embed_call_of(obj, reads_places=reads_places(manager.model_config)))
        is_named = obj.rid is not None
        obj.normalize_batch_and_arguments()
        names = ([obj.rid] if call.is_single else obj.rid) if is_named else []
        context.raise_if_taken()
        embedded, record = await packed_vectors(server, frontend, call, context, names, obj)
    except StockPathTaken as stock:
        server.path.metrics.record_fallback(stock.reason)
        context.explain(explain_stock, stock.reason)
        _put_ids(manager, obj, stock.call)
        async for answer in original(manager, obj, context.request):
            yield answer
        return
    context.explain(explain_vectors, embedded.served)
    yield _answer(manager, obj, call, embedded, record)


def _put_ids(manager: Any, obj: Any, call: EmbedCall | None) -> None:
    """Replace texts that were encoded by their ids, so that SGLang does not encode them again.

    EmbeddingGemma's texts stay, because SGLang ends them with a further token.
    """
    if call is not None and not manager.model_config.is_embedding_gemma:
        obj.text = None
        obj.input_ids = call.prompts[0] if call.is_single else call.prompts


def _answer(manager: Any, obj: Any, call: EmbedCall, embedded: Embedded, record: CallRecord) -> Any:
    """The answer as SGLang builds it, a list for a list of prompts."""
    answers = native_answers(
        *(embedded.vectors, embedded.served, [obj.rid] if call.is_single else obj.rid),
        weights=manager.config_value("weight_version"),
        seconds=record.times.get_e2e_latency(),
    )
    if manager.enable_metrics:
        times = record.times.convert_to_output_meta_info()
        for answer in answers:
            answer["meta_info"].update(times)
    if embedded.states is not None:
        dtype = manager.model_config.dtype
        for answer, state in zip(answers, embedded.states, strict=True):
            answer["pooled_hidden_state"] = torch.from_numpy(state.copy()).to(dtype)
    return answers[0] if call.is_single else answers
