"""Hooks in SGLang's front-end processes: scoring calls take the packed path."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from sglang.srt.managers.io_struct import GenerateReqInput
from sglang.srt.managers.tokenizer_manager_score_mixin import ScoreResult

from sglang_prefill_ext.border.activation import config_of
from sglang_prefill_ext.border.http_server import own_routes
from sglang_prefill_ext.border.http_server.embeddings_route import shorten_embeddings
from sglang_prefill_ext.border.http_server.fast_route import raise_if_taken, restore
from sglang_prefill_ext.border.http_server.gc_route import add_gc_route
from sglang_prefill_ext.border.http_server.generate_route import shorten_generate
from sglang_prefill_ext.border.http_server.http_errors import counted
from sglang_prefill_ext.border.http_server.score_route import shorten_scores
from sglang_prefill_ext.border.messages import GcReq, PackedRowsResults, PackedStatusResult
from sglang_prefill_ext.border.model.capability import encoder_traits
from sglang_prefill_ext.border.tokenizer_manager import (
    chat_hooks,
    embed_hooks,
    text_hooks,
    token_hooks,
)
from sglang_prefill_ext.border.tokenizer_manager.attached import accept_frontends
from sglang_prefill_ext.border.tokenizer_manager.call_records import keep_records, records_of
from sglang_prefill_ext.border.tokenizer_manager.direct_generate import DirectGenerate
from sglang_prefill_ext.border.tokenizer_manager.frontend_link import (
    TokenizerManagerLink,
    embedding_kind,
    embedding_rows,
)
from sglang_prefill_ext.border.tokenizer_manager.gc_frontend import FrontendGc
from sglang_prefill_ext.border.tokenizer_manager.override_hooks import (
    accept_bodies,
    call_of,
    check_input_embeds,
    check_overrides,
    with_arrays,
    with_tensors,
)
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.frontend.exchange import (
    PackedExchange,
    StockPathTaken,
    headers_unless_opted_out,
)
from sglang_prefill_ext.frontend.explain import explain_packed, explain_stock
from sglang_prefill_ext.frontend.options import options_of
from sglang_prefill_ext.frontend.score.score_call import ScoreCall
from sglang_prefill_ext.frontend.score.score_frontend import Scored, ScoreFrontend
from sglang_prefill_ext.frontend.token.token_limits import TokenNumbers, check_readout
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.process.stages import STARTUP
from sglang_prefill_ext.wire.prefix_policy import repeated_prefixes
from sglang_prefill_ext.wire.stock_reason import StockReason
from sglang_prefill_ext.wire.token_ids import check_positions, check_prompt

_ATTRIBUTE = "_prefill_only_frontend"


def attach_frontend(_result: None, manager: Any) -> None:
    """AFTER `TokenizerManager.init_request_dispatcher`.

    A process may make one engine after the other, with the flag and without.
    """
    app = own_routes.application()
    if app is not None:
        restore(app)
    config = config_of(manager.server_args)
    if config is None:
        return
    metrics = FrontendMetrics(manager.metrics_collector.labels if manager.enable_metrics else None)
    link = TokenizerManagerLink(manager, config, metrics)
    frontend = _build_frontend(manager, link, config, metrics)
    setattr(manager, _ATTRIBUTE, frontend)
    records = keep_records(manager)
    text_hooks.attach(manager, link, config, metrics)
    chat_hooks.attach(manager, link.texts)
    if not manager.is_generation:
        embedding = embed_hooks.attach(manager, link, frontend)
        if app is not None:
            shorten_embeddings(app, manager, embedding)
    elif manager.tokenizer is not None:
        tokens = token_hooks.attach(manager, frontend)
        if app is not None:
            shorten_generate(app, DirectGenerate(manager, tokens, records))

    def on_results(message: PackedRowsResults) -> None:
        for rid, result in message.results.items():
            frontend.exchange.deliver(rid, result)

    manager._result_dispatcher._mapping[PackedRowsResults] = on_results
    manager._result_dispatcher._mapping[PackedStatusResult] = link.deliver_status
    broker = accept_frontends(app, manager, link, frontend) if config.attach else None
    collection = FrontendGc(manager, frontend, broker)
    manager._result_dispatcher._mapping[GcReq] = collection.take
    STARTUP.mark("tokenizer")
    if app is not None:
        own_routes.add_routes(app, frontend, link, broker)
        add_gc_route(app, collection)
        accept_bodies(app, config, frontend.metrics, ("/v1/score", own_routes.EXPLAIN_PATH))
        if manager.is_generation:  # in front of that: bodies with embeddings are passed on
            serve = partial(_packed_scores, manager, frontend)
            shorten_scores(app, manager, serve, frontend.answers)


async def score_request(
    original: Callable[..., Awaitable[Any]], manager: Any, *args: Any, **kwargs: Any
) -> Any:
    """AROUND `TokenizerManagerScoreMixin.score_request`.

    Raises:
        RequestError: the request is wrong (HTTP 400).
        PrefillExtError: one of `HTTP_ANSWERED`, which is an `HTTPException` as well.
    """
    frontend: ScoreFrontend | None = getattr(manager, _ATTRIBUTE, None)
    if frontend is None:
        return await original(manager, *args, **kwargs)
    call = call_of(*args, **kwargs)
    if not manager.is_generation:
        # SGLang makes these scores of vectors; the call for those is packed and counted.
        explained = partial(explain_stock, StockReason.NOT_GENERATION)
        own_routes.note_explanation(call.request, explained)
        return await original(manager, **with_tensors(call).arguments())
    try:
        raise_if_taken(call.request)
        scored = await _packed_scores(manager, frontend, with_arrays(call))
    except StockPathTaken as stock:
        frontend.metrics.record_fallback(stock.reason)
        own_routes.note_explanation(call.request, partial(explain_stock, stock.reason))
        with token_hooks.stock_path():
            return await original(manager, **with_tensors(stock.call or call).arguments())
    own_routes.note_explanation(call.request, partial(explain_packed, scored))
    return ScoreResult(
        scores=scored.scores,
        prompt_tokens=scored.prompt_tokens,
        token_logprobs=scored.token_logprobs,
    )


async def _packed_scores(manager: Any, frontend: ScoreFrontend, call: ScoreCall) -> Scored:
    with counted(frontend.metrics, call.request):
        frontend.check_limits(call)  # before anything is made of its items, also a record
        keeping = records_of(manager).keeping(call.request, call.num_items, call.contents)
        with keeping as record:
            headers = headers_unless_opted_out(call.request)
            scored = await frontend.score(call, options_of(headers, now_ms=time.time() * 1e3))
            record.served = scored.served
    return scored


def validate_prompt(manager: Any, obj: Any, input_ids: Any) -> None:
    """BEFORE `TokenizerManager._validate_one_request`: stop what kills the scheduler.

    Prompts whose ids a multimodal processor makes are left alone. A turn of a session may be
    empty: what is scored is the session's history.

    Raises:
        RequestError: the prompt is empty, an id lies outside the vocabulary, embeddings that
            come with it or in its place are unlike the model's, or an encoder has no use for
            them, or no positions for so many tokens; or the request is for tokens or positions
            that there are not.
    """
    if getattr(manager, _ATTRIBUTE, None) is None:
        return
    if isinstance(obj, GenerateReqInput):
        _numbers_of(obj).check(manager.model_config.vocab_size)
        _check_readout(manager.server_args, obj, input_ids)
    if getattr(obj, "input_embeds", None) is not None:
        check_input_embeds(obj.input_embeds, embedding_kind(manager))
        return
    if input_ids is None:
        return
    if manager.mm_processor is not None and obj.contains_mm_input():
        return
    continues_session = bool((getattr(obj, "session_params", None) or {}).get("id"))
    if len(input_ids) == 0 and continues_session:
        return
    encoder = encoder_traits(manager.model_config)
    check_overrides(obj, embedding_kind(manager), encoder=encoder is not None)
    # What came as texts may have ids by now, see `text_hooks`.
    field = "text" if obj.text is not None else "input_ids"
    check_prompt(input_ids, embedding_rows(manager), field=field)
    # What is over the context length is refused by SGLang.
    if encoder is not None and len(input_ids) <= manager.context_len:
        check_positions(len(input_ids), encoder.longest_prompt, field=field)


def _check_readout(server_args: Any, obj: Any, input_ids: Any) -> None:
    """Check what a `GenerateReqInput` for one prompt asks to be read inside it.

    SGLang reads there only where no token is generated; then as for its setwise scores, whose
    conditions these are.
    """
    if obj.token_indices_to_pool is None or obj.sampling_params.get("max_new_tokens") != 0:
        return
    in_one_piece = (
        server_args.disable_radix_cache
        and server_args.chunked_prefill_size == -1
        and not server_args.allow_auto_truncate
    )
    tokens = None if input_ids is None else len(input_ids)
    check_readout(obj.token_indices_to_pool, tokens, in_one_piece=in_one_piece)


def _numbers_of(obj: Any) -> TokenNumbers:
    """What a `GenerateReqInput` for one prompt asks for."""
    sampling = obj.sampling_params
    return TokenNumbers(
        obj.top_logprobs_num,
        obj.logprob_start_len if obj.return_logprob else -1,
        sampling.get("top_k") or 0,
        sampling.get("min_new_tokens") or 0,
        sampling.get("stop_token_ids") or (),
    )


def _build_frontend(
    manager: Any, link: TokenizerManagerLink, config: PrefillOnlyConfig, metrics: FrontendMetrics
) -> ScoreFrontend:
    tokenizer = manager.tokenizer
    # SGLang refuses label ids beyond the tokenizer's base vocabulary, where it has one.
    label_vocab_size = manager.model_config.vocab_size
    if tokenizer is not None:
        label_vocab_size = min(label_vocab_size, tokenizer.vocab_size)
    frontend = ScoreFrontend(
        link,
        PackedExchange(link, max_row_tokens=config.max_forward_tokens),
        config,
        metrics,
        vocab_size=embedding_rows(manager),
        embeddings=embedding_kind(manager),
        label_vocab_size=label_vocab_size,
        has_tokenizer=tokenizer is not None,
        truncates=manager.allow_auto_truncate,
        prefixes=repeated_prefixes(config, caching=not manager.server_args.disable_radix_cache),
    )
    if manager.server_args.enable_mis:
        frontend.exchange.decline(StockReason.MULTI_ITEM_SCORING)
    return frontend
