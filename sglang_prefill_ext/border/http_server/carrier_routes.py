"""Routes by which routers of a fleet reach an engine (see `attach.carrier`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from sglang_prefill_ext.attach import carrier
from sglang_prefill_ext.attach.carrier import EngineState, Offer, PartAnswer
from sglang_prefill_ext.attach.engine import Engine, result_of
from sglang_prefill_ext.border.http_server.http_errors import refusal
from sglang_prefill_ext.errors import PackingError, RequestError
from sglang_prefill_ext.frontend.ask_processes import Turns
from sglang_prefill_ext.frontend.options import options_of
from sglang_prefill_ext.frontend.worker import departure

_UNREAD = 400  # to one that has left

_SCHEDULERS_WAIT_S = 0.5
"""What the answer of schedulers may take; those in a long forward are left out."""

_LEFT_OUT = ("patches", "startup", "graphs")
"""Of what schedulers tell, this is for people."""


class CarriedEngine(Engine, Protocol):
    @property
    def tokens(self) -> int: ...


class _Offers:
    """The offer with its fingerprint, which is made anew only when something has changed."""

    def __init__(self, offer: Callable[[], Offer]) -> None:
        self._offer = offer
        self._last: tuple[Offer, str] | None = None

    def current(self) -> tuple[Offer, str]:
        offer = self._offer()
        if self._last is None or self._last[0] != offer:
            self._last = offer, carrier.fingerprint_of(offer)
        return self._last


def add_carrier_routes(
    app: Any,
    engine: CarriedEngine,
    offer: Callable[[], Offer],
    scheduler_status: Callable[[], Awaitable[list[dict[str, Any]]]],
) -> None:
    """Add the routes; they take the keys that scoring takes."""
    offers, schedulers = _Offers(offer), Turns(scheduler_status)

    async def facts(raw_request: Request) -> Response:
        offer, fingerprint = offers.current()
        known = raw_request.query_params.get("known") == fingerprint
        try:
            async with asyncio.timeout(_SCHEDULERS_WAIT_S):
                found = await schedulers.answer()
        except TimeoutError:
            found = []
        told = [{k: v for k, v in each.items() if k not in _LEFT_OUT} for each in found]
        state = EngineState(fingerprint, None if known else offer, told, engine.tokens)
        return Response(carrier.encode(state), media_type=carrier.MSGPACK)

    async def rows(raw_request: Request) -> Response:
        try:
            body = await raw_request.body()
            options = options_of(raw_request.headers, now_ms=time.time() * 1e3)
        except ClientDisconnect:
            return Response(status_code=_UNREAD)
        except RequestError as error:
            return refusal(error)

        async def part() -> PartAnswer:
            result = await result_of(engine, body, options)
            return PartAnswer(result, engine.tokens)

        return await _answered(part(), raw_request)

    async def calls(raw_request: Request) -> Response:
        try:
            call = carrier.call_from(await raw_request.body())
        except ClientDisconnect:
            return Response(status_code=_UNREAD)
        except PackingError as error:
            return refusal(error)
        return await _answered(engine.serve_stock(call), raw_request)

    app.add_api_route(carrier.FACTS_PATH, facts, methods=["GET"])
    app.add_api_route(carrier.ROWS_PATH, rows, methods=["POST"])
    app.add_api_route(carrier.CALLS_PATH, calls, methods=["POST"])


async def _answered(work: Coroutine[None, None, Any], request: Request) -> Response:
    """Answer with what the work returns; it ends, at once, when who wants it has left."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(departure(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return Response(status_code=_UNREAD)
        return Response(carrier.encode(working.result()), media_type=carrier.MSGPACK)
    finally:
        working.cancel()
        leaving.cancel()
