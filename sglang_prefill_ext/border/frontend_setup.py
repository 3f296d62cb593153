"""Sets up the packed path of a front-end process, once its tokenizer manager is there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from transformers import PreTrainedTokenizerBase

from sglang_prefill_ext.attach.address import ENGINE_FLAG, checked_path
from sglang_prefill_ext.attach.broker import Broker
from sglang_prefill_ext.border.activation import config_of
from sglang_prefill_ext.border.grammars import GRAMMARS, Grammars
from sglang_prefill_ext.border.http_server.carrier_routes import add_carrier_routes, offer_of
from sglang_prefill_ext.border.http_server.fast_route import Lifespan, restore
from sglang_prefill_ext.border.http_server.own_routes import add_gc_route, add_routes, application
from sglang_prefill_ext.border.http_server.packed_routes import shorten_routes
from sglang_prefill_ext.border.messages import (
    GcReq,
    PackedAbortReq,
    PackedRowsResults,
    PackedStatusResult,
)
from sglang_prefill_ext.border.model.model_classes import encoder_traits
from sglang_prefill_ext.border.tokenizer_manager.attached import AttachableEngine
from sglang_prefill_ext.border.tokenizer_manager.call_records import CallRecords
from sglang_prefill_ext.border.tokenizer_manager.frontend_link import (
    TokenizerManagerLink,
    embedding_kind,
    embedding_rows,
)
from sglang_prefill_ext.border.tokenizer_manager.gc_frontend import FrontendGc
from sglang_prefill_ext.border.tokenizer_manager.server import ATTRIBUTE, PrefillServer, server_of
from sglang_prefill_ext.border.tokenizer_manager.token_output import reasoning_count
from sglang_prefill_ext.config import PrefillOnlyConfig
from sglang_prefill_ext.errors import ConfigError
from sglang_prefill_ext.frontend.ask_processes import Turns
from sglang_prefill_ext.frontend.embed.embed_frontend import EmbedFrontend
from sglang_prefill_ext.frontend.packed_path import PackedPath
from sglang_prefill_ext.frontend.score.score_frontend import ScoreFrontend
from sglang_prefill_ext.frontend.text_batch import TextBatches
from sglang_prefill_ext.frontend.token.token_frontend import TokenFrontend
from sglang_prefill_ext.frontend.worker import Worker
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.process.stages import STARTUP
from sglang_prefill_ext.wire.prefix_policy import repeated_prefixes
from sglang_prefill_ext.wire.stock_reason import StockReason

_CHANGES_LOG_PROBS = ("logit_bias", "min_new_tokens", *GRAMMARS)
"""Sampling parameters that change log-probs. Calls for scores have none of their own, but SGLang
fills in those of `--preferred-sampling-params`."""


def attach_server(_result: None, manager: Any) -> None:
    """AFTER `TokenizerManager.init_request_dispatcher`.

    A process may make several engines one after the other, some with the flag and some without.
    """
    app = application()
    if app is not None:
        restore(app)
    config = config_of(manager.server_args)
    if config is None:
        return
    server = _server(manager, config)
    setattr(manager, ATTRIBUTE, server)
    handlers = manager._result_dispatcher._mapping
    handlers[PackedRowsResults] = server.link.deliver_rows
    handlers[PackedStatusResult] = server.link.deliver_status
    handlers[PackedAbortReq] = server.link.deliver_abort
    handlers[GcReq] = server.gc.take
    engine = AttachableEngine(server)
    if config.attach:
        server.gc.broker = _accept_frontends(app, engine, config.attach)
    STARTUP.mark("tokenizer")
    if app is not None:
        add_routes(app, server)
        add_gc_route(app, server.gc)
        offer = partial(offer_of, app, manager, engine)
        link = server.link
        schedulers = Turns(link.scheduler_status, is_whole=link.are_all_schedulers)
        add_carrier_routes(app, engine, offer, schedulers)
        shorten_routes(app, server)


def _accept_frontends(app: Any, engine: AttachableEngine, path: str) -> Broker:
    """Serve front ends in other processes, at a socket, for as long as the HTTP application runs.

    Raises:
        ConfigError: there is no HTTP application.
    """
    if app is None:
        raise ConfigError(f"{ENGINE_FLAG} needs a server; an offline engine cannot be attached to.")
    broker = Broker(engine, checked_path(path, flag=ENGINE_FLAG))
    app.router.lifespan_context = Lifespan(app.router.lifespan_context, broker.running)
    return broker


async def freeze_gc(original: Callable[[Any], Awaitable[None]], manager: Any) -> None:
    """AROUND `TokenizerManager.freeze_gc`, which SGLang calls after the warm-up."""
    server = server_of(manager)
    if server is None:
        await original(manager)
    else:
        await server.gc.freeze()


def _server(manager: Any, config: PrefillOnlyConfig) -> PrefillServer:
    metrics = FrontendMetrics(manager.metrics_collector.labels if manager.enable_metrics else None)
    link = TokenizerManagerLink(manager, config, metrics)
    path, reasoning = _path(manager, link, config, metrics), reasoning_count(manager.tokenizer)
    return PrefillServer(
        *(manager, path, link, ScoreFrontend(path), CallRecords(manager)),
        grammars=Grammars(manager, reasoning.end),
        gc=FrontendGc(manager, path),
        embed=None if manager.is_generation else EmbedFrontend(path),
        tokens=TokenFrontend(path) if manager.is_generation else None,
        texts=_texts(manager, path, link),
        chats=link.texts if _encodes_chats_as_texts(manager.tokenizer) else None,
        reasoning=reasoning,
    )


def _path(
    manager: Any, link: TokenizerManagerLink, config: PrefillOnlyConfig, metrics: FrontendMetrics
) -> PackedPath:
    args, tokenizer = manager.server_args, manager.tokenizer
    link.exchange.declined_reason = why_all_is_stock(manager)
    # If there is a tokenizer, SGLang refuses label ids beyond its base vocabulary.
    label_vocab_size = manager.model_config.vocab_size
    if tokenizer is not None:
        label_vocab_size = min(label_vocab_size, tokenizer.vocab_size)
    encoder = None if manager.is_generation else encoder_traits(manager.model_config)
    prefixes = repeated_prefixes(config, caching=not args.disable_radix_cache)
    return PackedPath(
        *(link, link.exchange, config, metrics),
        vocab_size=embedding_rows(manager),
        label_vocab_size=label_vocab_size,
        embeddings=embedding_kind(manager),
        has_tokenizer=tokenizer is not None,
        truncates=manager.allow_auto_truncate,
        watermarks=args.enable_watermark,
        prefixes=prefixes if encoder is None else None,
        encoder=encoder,
    )


def why_all_is_stock(manager: Any) -> StockReason | None:
    """Why a front end leaves all calls to SGLang by the server's flags; None if it does not."""
    if manager.server_args.enable_mis:
        return StockReason.MULTI_ITEM_SCORING
    preferred = manager.preferred_sampling_params or {}
    if manager.is_generation and any(preferred.get(name) for name in _CHANGES_LOG_PROBS):
        return StockReason.UNUSUAL_INPUT
    return None


def _texts(
    manager: Any, path: PackedPath, link: TokenizerManagerLink
) -> TextBatches[list[int]] | None:
    """Make what encodes texts in a manager's place; None if the manager encodes them unusually."""
    unusual = (
        not link.tokenizer_json  # no tokenizer, or one that threads cannot share
        or manager.mm_processor is not None
        or manager.async_dynamic_batch_tokenizer is not None  # the operator's choice
    )
    if unusual:
        return None
    return TextBatches(path, Worker("prefill-only-texts"), list)


def _encodes_chats_as_texts(tokenizer: Any) -> bool:
    stock = getattr(type(tokenizer), "encode", None) is PreTrainedTokenizerBase.encode
    return stock and "encode" not in vars(tokenizer)
