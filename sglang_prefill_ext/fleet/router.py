"""The HTTP application of a router: divides requests over the engines, or hands them to one."""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Callable
from functools import partial

import msgspec
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sglang_prefill_ext.attach.session import Session
from sglang_prefill_ext.errors import (
    EngineUnavailableError,
    PackedForwardError,
    PrefillExtError,
    RequestError,
    ServerBusyError,
)
from sglang_prefill_ext.fleet.fleet import Fleet
from sglang_prefill_ext.fleet.proxy import NotSentError, hand_on
from sglang_prefill_ext.fleet.routes import DividedRoutes
from sglang_prefill_ext.fleet.status import metrics_page, status_of
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.options import JSON, READS_ARRAYS, key_in, says_json
from sglang_prefill_ext.metrics import FrontendMetrics
from sglang_prefill_ext.process.collector import Collector
from sglang_prefill_ext.wire.status import end_by

logger = logging.getLogger(__name__)

_REPEATABLE = ("/v1/score", "/v1/rerank", "/v1/embeddings", "/v1/classify", "/classify")
"""Routes without side effects: if an engine fails, another may be asked in any case."""

LONGEST_UNKNOWN = 1 << 18
"""Most bytes of a body without the key. An engine would refuse it, but gets it as a whole."""

_readable_by_pages = partial(
    CORSMiddleware,
    allow_origins=["*"],
    allow_credentials=True,
    allow_methods=["*"],
    allow_headers=["*"],
)
"""Lets pages of any origin read an answer, as SGLang does; an engine's answers say so already."""


class Router:
    """An ASGI application: divides what can be divided, and hands everything else on.

    Args:
        collector: of this process, for the status page.
        api_key: requests without this key are not divided, but left to an engine to refuse; if
            empty, none is needed.
    """

    def __init__(
        self, fleet: Fleet, metrics: FrontendMetrics, collector: Collector, *, api_key: str = ""
    ) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self._collector = collector
        self._key = api_key.encode()
        self._routes: DividedRoutes | None = None
        self._own: dict[str, Callable[[Request], Response | None]] = {
            "/health": lambda _: Response(status_code=200 if fleet.whole.available() else 503),
            "/prefill_only/status": self._status,
            "/metrics": lambda _: metrics_page(),
        }

    def begin(self, session: Session | None) -> None:
        """Serve the routes for a new session with the engines; without one, divide nothing."""
        offer = self._fleet.offer
        self._routes = DividedRoutes(offer, session) if offer and session else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve(Request(scope, receive), send)
        else:  # a WebSocket; those of SGLang are not handed on
            await receive()
            await send({"type": "websocket.close", "code": 1011})

    async def _serve(self, request: Request, send: Send) -> None:
        path = request.scope["path"]
        try:
            body = await self._body_of(request)
            request.state.came_ms = time.time() * 1e3  # from here the client's timeout counts
            if body is None:
                answer = _unauthorized()
            else:
                own = self._own.get(path) if request.method == "GET" else None
                found = own(request) if own else await self._divided(path, body, request)
                if found is None:
                    await self._hand_on(request, body, send)
                    return
                answer = found
        except ClientDisconnect:
            return  # before its request was complete
        except PrefillExtError as error:
            self._metrics.count_requests(end_by(error).counted)
            answer = _error_response(error)
        except Exception as error:
            logger.exception("A request could not be answered")
            self._metrics.count_requests("failed")
            answer = _error_response(PackedForwardError(f"{type(error).__name__}: {error}"))
        await _readable_by_pages(answer)(request.scope, request.receive, send)

    async def _divided(self, path: str, body: bytes, request: Request) -> Response | None:
        """Serve a request by all engines; None if one engine is to serve it."""
        routes = self._routes
        serve = None if routes is None else routes.answers.get(path)
        plain = says_json(request.headers)
        if serve is None or not plain or request.method != "POST" or not self._knows(request):
            return None
        try:
            content = await serve(body, request)
        except EngineUnavailableError:
            if self._routes is routes:
                raise
            return await self._divided(path, body, request)  # other engines have taken over
        except (StockPathTaken, RequestError, UnicodeError):
            return None  # an engine counts it, or refuses it in words that a client may know
        return None if content is None else Response(content, 200, READS_ARRAYS, JSON)

    async def _hand_on(self, request: Request, body: bytes, send: Send) -> None:
        """Have an engine serve a request as a whole; another one if the first cannot be reached."""
        await self._fleet.whole.served(
            lambda replica: hand_on(self._fleet.http, replica.url, request, body, send),
            repeatable=lambda error: (
                isinstance(error, NotSentError) or request.scope["path"] in _REPEATABLE
            ),
        )

    async def _body_of(self, request: Request) -> bytes | None:
        """The body of a request; None if it is too long for a client without the key."""
        if self._knows(request):
            return await request.body()
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > LONGEST_UNKNOWN:
                return None
        return bytes(body)

    def _knows(self, request: Request) -> bool:
        """Whether the client shows the key, or needs none."""
        shown = key_in(request.headers.get("authorization", ""))
        return not self._key or hmac.compare_digest(shown, self._key)

    def _status(self, request: Request) -> Response | None:
        """The status page; as an engine's, only for clients with the key."""
        if not self._knows(request):
            return _unauthorized()
        content = msgspec.json.encode(status_of(self._fleet, self._metrics, self._collector))
        return Response(content, media_type=JSON)


def _unauthorized() -> Response:
    return Response(b'{"error":"Unauthorized"}', 401, media_type=JSON)


def _error_response(error: PrefillExtError) -> Response:
    """Return the answer to a request that ends with an error, in the form of OpenAI's routes."""
    status = end_by(error).http
    body = {
        "object": "error",
        "message": str(error),
        "type": str(status),
        "param": None,
        "code": status,
    }
    headers = dict(READS_ARRAYS)
    if isinstance(error, ServerBusyError):
        headers |= error.retry_header()
    return Response(msgspec.json.encode(body), status, headers, JSON)
