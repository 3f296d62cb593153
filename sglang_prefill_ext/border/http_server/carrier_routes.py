"""The routes by which routers of a fleet reach an engine, and the offer that it makes them.

`attach.carrier` defines their messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from sglang_prefill_ext.attach import carrier
from sglang_prefill_ext.attach.carrier import EngineState, Offer, PartAnswer
from sglang_prefill_ext.attach.engine import result_of
from sglang_prefill_ext.attach.messages import StockAnswer, StockError
from sglang_prefill_ext.border.http_server.fast_route import refusal
from sglang_prefill_ext.border.http_server.rerank_hooks import reranking_of
from sglang_prefill_ext.border.model.model_classes import encoder_traits
from sglang_prefill_ext.border.tokenizer_manager.attached import AttachableEngine
from sglang_prefill_ext.errors import ConfigError, PackingError, RequestError
from sglang_prefill_ext.frontend.ask_processes import Turns
from sglang_prefill_ext.frontend.client_wait import until_departure
from sglang_prefill_ext.frontend.options import options_of
from sglang_prefill_ext.sizing.model import ModelShape

_UNREAD = 400  # for a client that has left, so nobody reads it

_SCHEDULERS_WAIT_S, _SCHEDULERS_AGE_S = 0.5, 10.0
"""How long schedulers may take to answer. If one is in a long forward, their last answer is
reported, unless it is too old to show that they run."""

_LEFT_OUT = ("patches", "startup", "graphs")
"""Fields of a scheduler's status that are for people, not for routers."""


def add_carrier_routes(
    app: Any,
    engine: AttachableEngine,
    current_offer: Callable[[], Offer],
    schedulers: Turns[list[dict[str, Any]]],
) -> None:
    """Add the routes; they need the same API key as scoring.

    Args:
        schedulers: asks for their parts of the status page.
    """

    changes = OfferChanges()

    async def facts(raw_request: Request) -> Response:
        offer = current_offer()
        fingerprint = carrier.fingerprint_of(offer)
        query = raw_request.query_params
        if query.get("tokenizer") == offer.tokenizer_digest:
            offer = carrier.with_tokenizer(offer, "")
        found, late = await schedulers.answer_within(_SCHEDULERS_WAIT_S, _SCHEDULERS_AGE_S)
        told = [{k: v for k, v in each.items() if k not in _LEFT_OUT} for each in found or []]
        offered = None if query.get("known") == fingerprint else offer
        state = EngineState(
            *(fingerprint, offered, told, late, engine.tokens),
            leaving=engine.leaving,
            paused=engine.paused,
            since_s=changes.since_s(fingerprint),
        )
        return Response(carrier.encode(state), media_type=carrier.MSGPACK)

    async def rows(raw_request: Request) -> Response:
        async def serve(body: bytes) -> PartAnswer:
            options = options_of(raw_request.headers, now_ms=time.time() * 1e3)
            result = await result_of(engine, body, options)
            return PartAnswer(result, engine.tokens, engine.weights)

        return await _answered(raw_request, serve)

    async def calls(raw_request: Request) -> Response:
        async def serve(body: bytes) -> StockAnswer | StockError:
            return await engine.serve_stock(carrier.call_from(body))

        return await _answered(raw_request, serve)

    # FastAPI's own routes would cost every part the check of all routes before, and of arguments.
    app.router.routes[:0] = [
        Route(carrier.ROWS_PATH, rows, methods=["POST"]),
        Route(carrier.CALLS_PATH, calls, methods=["POST"]),
        Route(carrier.FACTS_PATH, facts, methods=["GET"]),
    ]


class OfferChanges:
    """Since when an engine makes its offer; the first one, since the engine started."""

    def __init__(self) -> None:
        self._fingerprint = ""
        self._since_s = time.time()

    def since_s(self, fingerprint: str) -> float:
        """Since when this has been the fingerprint, Unix time; all routers are told the same."""
        if self._fingerprint not in ("", fingerprint):
            self._since_s = time.time()
        self._fingerprint = fingerprint
        return self._since_s


async def _answered(
    request: Request, serve: Callable[[bytes], Coroutine[None, None, Any]]
) -> Response:
    """Answer with what `serve` returns for the body; cancelled as soon as the client leaves."""
    try:
        body = await request.body()
        async with until_departure(request):
            return Response(carrier.encode(await serve(body)), media_type=carrier.MSGPACK)
    except ClientDisconnect:
        pass
    except (PackingError, RequestError) as error:
        return refusal(error)
    return Response(status_code=_UNREAD)


def offer_of(app: Any, manager: Any, engine: AttachableEngine) -> Offer:
    """Return the current offer; an operator may have replaced the weights since the last one."""
    model = manager.model_config
    return Offer(
        facts=engine.facts(),
        tokenizer_digest=engine.tokenizer_digest,
        served_name=manager.served_model_name or manager.model_path,
        model_path=manager.model_path,
        settings=_settings(manager),
        encoder=encoder_traits(model),
        reranking=reranking_of(app, manager),
        shows_times=manager.enable_metrics,
        pair_tokens=_pair_tokens(model.hf_config),
    )


def _settings(manager: Any) -> dict[str, str]:
    args = manager.server_args
    settings = {
        "--revision": args.revision,
        "--quantization": args.quantization,
        "--kv-cache-dtype": args.kv_cache_dtype,
        "--context-length": manager.context_len,
        "--allow-auto-truncate": manager.allow_auto_truncate,
        "--enable-mis": args.enable_mis,
        "--skip-tokenizer-init": args.skip_tokenizer_init,
        "weight version": manager.config_value("weight_version"),
    }
    return {name: str(value) for name, value in settings.items()}


def _pair_tokens(config: Any) -> float:
    try:
        return ModelShape.of_config(config.to_dict()).pair_tokens
    except ConfigError:  # a model that cannot be counted
        return 0.0
