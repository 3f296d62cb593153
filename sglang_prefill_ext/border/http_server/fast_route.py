"""A way of our own into SGLang's HTTP application, in front of some routes.

FastAPI validates a request into one object after the other and turns its answer into plain
values number by number, which takes longer than the forward of a small model. Middlewares, so
authentication, metrics and CORS, stay in front.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from fastapi import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from sglang_prefill_ext.border.http_server.http_errors import error_response
from sglang_prefill_ext.errors import RequestError
from sglang_prefill_ext.frontend.exchange import StockPathTaken
from sglang_prefill_ext.frontend.options import ARRAYS_HEADER

_App: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]
_Serve: TypeAlias = Callable[[bytes, Request], Awaitable[Response | bytes]]
_Answer: TypeAlias = Callable[[bytes, Request], Awaitable[bytes | None]]

JSON = "application/json"
OUR_PATHS = "/prefill_only/"

# Entry of an ASGI scope: why SGLang is to serve the request.
_TAKEN = "prefill_only_stock_path_taken"
READS_ARRAYS = {ARRAYS_HEADER: "int32"}
"""Header of answers to those who may send arrays."""
NO_HEADERS: Mapping[str, str] = {}


class FastRoute:
    """An ASGI application in the place of a route's own.

    Args:
        stock: the route's own application.
        serve: answers a request, given its body; or returns the body for `stock` to serve.
        headers: of what `stock` answers, beside its own.
    """

    def __init__(self, stock: _App, serve: _Serve, headers: Mapping[str, str]) -> None:
        self.stock = stock
        self._serve = serve
        self._headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        if request.headers.get("content-type", "").lower().split(";", 1)[0] != JSON:
            await self.stock(scope, receive, send)
            return
        try:
            body = await request.body()
        except ClientDisconnect:
            return  # within its request: there is nothing to answer, and nobody to tell
        answer = await self._serve(body, request)
        if isinstance(answer, bytes):
            await self.stock(scope, _Replay(answer, receive), self._adding_headers(send))
        else:
            await answer(scope, receive, send)

    def _adding_headers(self, send: Any) -> Any:
        if not self._headers:
            return send

        async def add(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self._headers]
            await send(message)

        return add


def shorten_packed(app: Any, path: str, serving: str, manager: Any, answer: _Answer) -> None:
    """Let `answer` write the answers to a route of SGLang's OpenAI API.

    Args:
        serving: name of the route's own handler in the application's state; errors look like its.
        answer: serves a body on the packed path and returns that of its answer; None, or a
            `StockPathTaken`, which is counted there, to have the route serve it.
    """

    async def serve(body: bytes, request: Request) -> Response | bytes:
        try:
            # Where SGLang logs bodies, it has to see each.
            logger = manager.request_logger
            logged = logger.log_requests and logger.log_requests_level >= 2
            content = None if logged else await answer(body, request)
        except StockPathTaken as taken:
            request.scope[_TAKEN] = taken
            return body
        except (HTTPException, RequestError, UnicodeError) as error:
            response: Response = error_response(getattr(request.app.state, serving), error)
            response.headers.update(READS_ARRAYS)
            return response
        return body if content is None else Response(content, 200, READS_ARRAYS, JSON)

    shorten(app, path, serve)


def raise_if_taken(request: Any) -> None:
    """Spare a request a second attempt at the packed path.

    Args:
        request: of the client, if any.

    Raises:
        StockPathTaken: its route has found that SGLang is to serve it.
    """
    taken: StockPathTaken | None = getattr(request, "scope", {}).get(_TAKEN)
    if taken is not None:
        raise taken


class _Replay:
    """Receives a body that was read already, then what follows it."""

    def __init__(self, body: bytes, receive: Callable[[], Awaitable[Any]]) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Any:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


def shorten(app: Any, path: str, serve: _Serve, headers: Mapping[str, str] = NO_HEADERS) -> None:
    """Let `serve` answer the requests of the application's route of that path.

    The router tries one route after the other, so this becomes the first; no other has its path.

    Args:
        headers: see `FastRoute`.
    """
    routes = app.router.routes
    (route,) = (route for route in routes if getattr(route, "path", None) == path)
    routes.remove(route)
    routes.insert(0, route)
    route.app = FastRoute(route.app, serve, headers)


def restore(app: Any) -> None:
    """Take out of an application whatever an earlier engine of this process has put in."""
    routes = app.router.routes
    for route in list(routes):
        if getattr(route, "path", "").startswith(OUR_PATHS):
            routes.remove(route)
        while isinstance(getattr(route, "app", None), FastRoute):
            route.app = route.app.stock
